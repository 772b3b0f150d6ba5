"""What every process of graphdoctor's own needs: where to find the package, and what it last said of itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.*)')


def search_path() -> str:
    """Where this process found graphdoctor, also when that is a folder nobody installed."""
    here = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH")
    return f"{given}{os.pathsep}{here}" if given else here


def dumped_frames(output: str) -> Iterator[re.Match[str]]:
    """The main thread's frames that faulthandler wrote last, innermost first: file, line, function."""
    _, _, dump = output.rpartition("(most recent call first):")
    return filter(None, map(_FRAME.match, dump.splitlines()))
