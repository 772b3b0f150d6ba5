"""The running Python frames -> the user's line that called torch, and the lines that led there."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from types import FrameType
from typing import NamedTuple

from graphdoctor.model import Location

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_RULES = os.path.join(_HERE, "rules") + os.sep  # their examples are user code
_STDLIB = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep
_SESSION = os.path.join(_HERE, "record", "session.py")
_MAX_STACK = 8
_ENGINE = "_engine_run_backward"


class Place(NamedTuple):
    """Where the host is. `in_engine` says that autograd's engine, and no user code above it, is running."""

    location: Location | None
    stack: tuple[Location, ...]
    in_engine: bool


@cache
def is_user_file(filename: str) -> bool:
    """Whether a frame of this file belongs to the user (their libraries included), not to torch or Python."""
    if filename.startswith("<"):
        return filename.startswith(("<stdin>", "<ipython"))
    path = os.path.abspath(filename)
    if path.startswith(_HERE):
        return path.startswith(_RULES)
    if f"{os.sep}site-packages{os.sep}torch{os.sep}" in path or path.startswith(_torch_folder()):
        return False
    in_stdlib = os.path.realpath(path).startswith(_STDLIB)
    return not in_stdlib or "site-packages" in path


@cache
def _torch_folder() -> str:
    import torch

    return os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


@cache
def _location(filename: str, line: int, function: str) -> Location:
    return Location(file=filename, line=line, function=function)


def locate(depth: int = 1) -> Place:
    """The nearest user frame of the calling thread, and up to eight user frames in all."""
    return locate_from(sys._getframe(depth))


def locate_from(frame: FrameType | None) -> Place:
    """The same from a given frame outwards, up to where graphdoctor calls the step."""
    found: list[Location] = []
    in_engine = False
    while frame is not None and len(found) < _MAX_STACK:
        code = frame.f_code
        if is_user_file(code.co_filename):
            found.append(_location(code.co_filename, frame.f_lineno, code.co_name))
        elif not found and code.co_name == _ENGINE:
            in_engine = True
        elif code.co_name == "call" and os.path.abspath(code.co_filename) == _SESSION:
            break
        frame = frame.f_back
    return Place(found[0] if found else None, tuple(found[1:]), in_engine)
