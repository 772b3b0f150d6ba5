"""A log folder in, a real TensorBoard on loopback with its plugins out, asked through its HTTP interface."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PATIENCE_S = 180.0  # a shared machine may take a minute for what takes five seconds alone
_ADDRESS = re.compile(r"at (http://127\.0\.0\.1:\d+)/")
# A proxy of the environment is for other hosts than this one.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class TensorBoard:
    """Answers of one server. `ask` gives JSON, `wait_for` asks until the answer is what it has to be."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, path: str, **query: str) -> Any:
        return json.loads(self.page(path, **query))

    def page(self, path: str, **query: str) -> bytes:
        url = f"{self.address}{path}?{urllib.parse.urlencode(query)}"
        with _DIRECT.open(url, timeout=60) as answer:
            content: bytes = answer.read()
        return content

    def wait_for(self, path: str, is_there: Callable[[Any], bool], **query: str) -> Any:
        deadline, seen = time.monotonic() + _PATIENCE_S, None
        while time.monotonic() < deadline:
            try:
                seen = self.ask(path, **query)
            except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
                seen = error
            else:
                if is_there(seen):
                    return seen
            time.sleep(0.2)
        raise AssertionError(f"{path} did not come to its answer; the last was {seen!r}")


@contextmanager
def tensorboard(logdir: Path, scratch: Path) -> Iterator[TensorBoard]:
    """Runs until the end of the block. The server itself picks a free port and says which."""
    command = [
        *(sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir)),
        *("--host", "127.0.0.1", "--port", "0", "--load_fast", "false", "--reload_interval", "1"),
    ]
    log = scratch / "tensorboard.log"
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment, start_new_session=True
        )
    try:
        yield TensorBoard(_address(server, log))
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # its plugin starts processes of its own
        server.wait()


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and server.poll() is None:
        found = _ADDRESS.search(log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"TensorBoard did not start:\n{log.read_text(errors='replace')}")
