"""`python -m MODULE` in a fork of a process that has imported torch: most of what a small check costs.

All processes of one test run share a server, which starts when it is first needed and ends with the run.
`command(MODULE, ARGUMENTS)` is a command line that asks it: what it runs has the folder, the variables, the
input and the output of who asks, and the same exit code; it ends when that process ends. The server of
targets, which a check starts, is a fork too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

CLI = "graphdoctor.cli"
_PROCESSES = "graphdoctor.device.processes"
ROOT = Path(__file__).parents[2]
_READY = "ready\n"
_SIZE_BYTES = 8


def command(module: str, *arguments: str) -> list[str]:
    """The command line that stands for `python -m MODULE ARGUMENTS`; the module has a `main`."""
    return _asking(_address(), module, *arguments)


def job(module: str, *arguments: str) -> list[str]:
    """Replaces `graphdoctor.device.processes.process.command`: what would be a fresh process is a fork."""
    return _asking(_address(), f"{_PROCESSES}.{module}", *arguments)


def command_of_a_fresh_one(*arguments: str) -> list[str]:
    """`python -m graphdoctor ARGUMENTS` in a fresh interpreter; only its server of targets is a fork."""
    given = (
        f"sys.path.append({str(ROOT)!r}); from tests.support import warm; warm.lend({_address()!r})"
    )
    program = f"import sys; {given}; from graphdoctor.cli import main; sys.exit(main())"
    return [sys.executable, "-c", program, *arguments]


@cache
def _address() -> str:
    """Of the server of this test run, which the first process that needs it starts."""
    import fcntl
    import tempfile

    owner = os.getpid()
    if run := os.environ.get("PYTEST_XDIST_TESTRUNUID"):  # this process is one of several of a run
        owner, folder = os.getppid(), Path(tempfile.gettempdir(), f"warm-{run}")
        folder.mkdir(exist_ok=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="warm-"))
    address = str(folder / "address")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not Path(address).exists():
            server = subprocess.Popen(
                [sys.executable, "-P", __file__, address, str(owner)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                env=_environment(),
            )
            assert server.stdout is not None
            assert server.stdout.readline() == _READY
    return address


def _environment() -> dict[str, str]:
    from graphdoctor.device.processes.process import environment

    return dict(environment())


def _asking(address: str, module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", __file__, address, module, *arguments]


def lend(address: str) -> None:
    """Let a check in this process take its server of targets from there."""
    from graphdoctor.device.processes import forked

    forked.command = lambda module, *arguments: _asking(
        address, f"{_PROCESSES}.{module}", *arguments
    )


def _ask(address: str, module: str, *arguments: str) -> int:
    asked = {"module": module, "arguments": arguments, "folder": os.getcwd()}
    text = json.dumps({**asked, "variables": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [len(text).to_bytes(_SIZE_BYTES, "big")], [0, 1, 2])
        server.sendall(text)
        code = int(server.recv(_SIZE_BYTES) or 1)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def _serve(address: str, owner: int) -> None:
    import gc
    import importlib
    import select
    import shutil

    from graphdoctor.device.processes.forked import look_through_modules

    # Optimizers import the last, which takes over a second.
    for module in (CLI, "graphdoctor.check.one_target", "torch._dynamo"):
        importlib.import_module(module)
    lend(address)
    look_through_modules()
    gc.freeze()  # what is loaded now stays shared
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        os.write(1, _READY.encode())
        while _is_running(owner):
            if not select.select([listening], [], [], 1.0)[0]:
                continue
            asker, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _answer(asker)
            asker.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    shutil.rmtree(Path(address).parent, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _answer(asker: socket.socket) -> None:
    """Run what is asked for in a child, and say how it ended."""
    import threading

    size, descriptors, _, _ = socket.recv_fds(asker, _SIZE_BYTES, 3)
    with asker.makefile("rb") as text:
        asked = json.loads(text.read(int.from_bytes(size, "big")))
    child = os.fork()
    if child == 0:
        asker.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        _live(**asked)
    for descriptor in descriptors:
        os.close(descriptor)

    def end_with_asker() -> None:
        asker.recv(1)
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.kill(child, signal.SIGKILL)

    threading.Thread(target=end_with_asker, daemon=True).start()
    _, status = os.waitpid(child, 0)
    asker.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _live(module: str, arguments: list[str], folder: str, variables: dict[str, str]) -> None:
    import importlib

    code: object = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = [module, *arguments]
        if module == CLI:
            sys.path.insert(0, folder)  # as `python -m` does
        if module == f"{_PROCESSES}.child":
            os.setsid()  # it ends with its whole group
        code = importlib.import_module(module).main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:  # a program may close them
                stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2].isdecimal():
        _serve(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(_ask(*sys.argv[1:]))
