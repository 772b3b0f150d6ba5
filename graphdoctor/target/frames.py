"""Find the user's line that called torch among the running Python frames, and the lines that led there."""

from __future__ import annotations

import linecache
import os
import sys
import threading
from functools import cache
from importlib.util import find_spec
from inspect import CO_OPTIMIZED
from itertools import islice
from types import CodeType, FrameType
from typing import NamedTuple

from graphdoctor.values.locations import Location, is_library, python_folders

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RULES = os.path.join(_HERE, "rules") + os.sep  # their examples are user code
_STDLIB = python_folders("stdlib", "platstdlib")
_SITE = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# Their frames hold all tests of a session, which nothing that looks at a step's variables is to go through.
_RUNNERS = tuple(
    f"{site}{name}{os.sep}" for site in _SITE for name in ("_pytest", "pluggy", "xdist", "execnet")
)
_TORCH = tuple(f"{site}torch{os.sep}" for site in _SITE)
_SESSION = os.path.join(_HERE, "record", "session.py")
# torch.fx numbers its code, and a graph rebuilt in each step gets a new number each time. Text given to exec() has no
# file to open.
_GENERATED = ("<eval_with_key>", "<string>")
_MAX_STACK = 8
_ENGINE = "_engine_run_backward"


class Place(NamedTuple):
    """Where the host is. `in_engine`: autograd's engine runs, and no user code above it."""

    location: Location | None
    stack: tuple[Location, ...]
    in_engine: bool


@cache
def is_machinery(filename: str) -> bool:
    """Whether a frame of this file is torch's, graphdoctor's, Python's library's or a test runner's.

    All else is the user's: their files, the packages they use, and what they typed or made by exec.
    """
    if filename.startswith("<"):
        return filename.startswith("<frozen")
    path = os.path.abspath(filename)
    if path.startswith(_HERE):
        return not path.startswith(_RULES)
    # The backport of Python's `typing` wraps what torch calls deprecated, as dist.all_gather_into_tensor.
    if is_torch(filename) or os.path.basename(path) == "typing_extensions.py":
        return True
    if any(part in path for part in _RUNNERS):
        return True
    return os.path.realpath(path).startswith(_STDLIB) and not is_library(path)


def is_own(filename: str) -> bool:
    """Whether a file is graphdoctor's, and no example of a rule."""
    return filename.startswith(_HERE) and not filename.startswith(_RULES)


def is_torch(filename: str) -> bool:
    """Whether a file is one of torch's."""
    path = os.path.abspath(filename)
    return any(part in path for part in _TORCH) or path.startswith(_torch_folder())


@cache
def _torch_folder() -> str:
    """Where torch is, if it was installed from a source tree; errors are shown without it too."""
    spec = find_spec("torch")
    return os.path.dirname(os.path.abspath(spec.origin)) + os.sep if spec and spec.origin else _HERE


def variables_of(frame: FrameType) -> dict[str, object]:
    """The local variables of a running frame, as a copy; of a file, its globals.

    Before Python 3.13, a function's frame keeps what `f_locals` gave, and with it every tensor that a
    variable held then. It is emptied here, unless the program holds it.
    """
    held = frame.f_locals
    if not frame.f_code.co_flags & CO_OPTIMIZED:
        return held
    names = dict(held)
    if type(held) is dict and sys.getrefcount(held) <= _OWN_REFERENCES:
        held.clear()
    return names


_OWN_REFERENCES = 3  # the frame's, the variable's and the call's


def calls_step(code: CodeType) -> bool:
    """Whether it is where graphdoctor calls the step: all outside of it is no part of the step."""
    return code.co_name == "call" and os.path.abspath(code.co_filename) == _SESSION


@cache
def _is_generated(filename: str) -> bool:
    """Whether it is code of torch.fx, or code that a program wrote itself and no person can look up.

    A cell of a notebook has source in `linecache`.
    """
    has_no_file = filename.startswith("<") and not linecache.getlines(filename)
    return has_no_file or filename.startswith(_GENERATED)


class _Code:
    """What one code object is, and the places in it that were seen; looked up by its identity.

    A code object's own hash is computed from all that it holds each time, which is slow.
    """

    __slots__ = ("code", "is_engine", "is_generated", "is_own", "is_start", "is_user", "places")

    def __init__(self, code: CodeType) -> None:
        self.code = code  # held, so that no other gets its identity
        self.is_generated = _is_generated(code.co_filename)
        self.is_user = not self.is_generated and not is_machinery(code.co_filename)
        self.is_own = self.is_user and not is_library(code.co_filename)
        self.is_engine = code.co_name == _ENGINE
        self.is_start = calls_step(code)
        self.places: dict[int, Location] = {}  # by the instruction that runs

    def place(self, frame: FrameType) -> Location:
        found = self.places.get(frame.f_lasti)
        if found is None:
            code = self.code
            found = Location(file=code.co_filename, line=frame.f_lineno, function=code.co_name)
            self.places[frame.f_lasti] = found
            _INSTRUCTIONS[id(found)] = (code, frame.f_lasti)
        return found


_CODES: dict[int, _Code] = {}
# By the identity of its place, which its code holds: two expressions of a line are equal places.
_INSTRUCTIONS: dict[int, tuple[CodeType, int]] = {}


def bytes_of_expression(place: Location) -> tuple[int, int] | None:
    """From which to which byte of its line the expression of a place reaches, counted from 0.

    None for a place that was not seen here, and for an expression of several lines.
    """
    code, instruction = _INSTRUCTIONS.get(id(place), (None, 0))
    if code is None or _CODES[id(code)].places.get(instruction) is not place:
        return None
    positions = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    line, last_line, start, end = positions
    if line != place.line or last_line != line or start is None or end is None:
        return None
    return start, end


def frame_of_engine(outermost: FrameType) -> FrameType | None:
    """The frame that waits for autograd's engine, where `outermost` is the last one of the engine's thread.

    The engine runs the backward pass of a GPU in a thread of its own, on whose stack there is nobody who called it.
    """
    own = threading.get_ident()
    if outermost.f_code.co_name == _ENGINE or any(
        each.ident == own and not isinstance(each, threading._DummyThread)
        for each in threading.enumerate()
    ):
        return None
    found = [frame for frame in sys._current_frames().values() if frame.f_code.co_name == _ENGINE]
    return found[0] if len(found) == 1 else None


def locate(depth: int = 1) -> Place:
    """The nearest user frame of the calling thread, and up to eight user frames in all.

    Where these are all of installed packages, the nearest other one comes as the ninth. Generated code
    counts as the user's only if there is no other.
    """
    return locate_from(sys._getframe(depth))


def locate_from(frame: FrameType | None) -> Place:
    """The same from a given frame outwards, up to where graphdoctor calls the step."""
    found: list[Location] = []
    generated: Location | None = None
    in_engine = has_own = False
    while frame is not None and (len(found) < _MAX_STACK or not has_own):
        code = frame.f_code
        seen = _CODES.get(id(code))
        if seen is None:
            seen = _CODES[id(code)] = _Code(code)
        if seen.is_user:
            if seen.is_own or len(found) < _MAX_STACK:
                found.append(seen.place(frame))
            has_own = has_own or seen.is_own
        elif seen.is_generated:
            generated = generated or seen.place(frame)
        elif seen.is_engine:
            in_engine = in_engine or not found
        elif seen.is_start:
            break
        frame = frame.f_back or frame_of_engine(frame)
    if not found and generated is not None:
        found.append(generated)
    return Place(found[0] if found else None, tuple(found[1:]), in_engine)
