"""Run the user's code, and raise one `UserCodeError` with the user's own frames if it fails."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphdoctor.target.frames import is_machinery, is_torch
from graphdoctor.values.errors import GraphDoctorError, UsageError, UserCodeError
from graphdoctor.values.locations import Location, is_library

_MAX_FRAMES = 20
_LONGEST = 160
_SPOILT = "operation failed due to a previous error during capture"


@contextmanager
def user_code(doing: str) -> Iterator[None]:
    """Turn whatever the user's code raises into `UserCodeError`; `doing` starts the sentence.

    SystemExit is turned too: a model that leaves the interpreter must not take the analysis with
    it. Errors of graphdoctor itself pass through, and so does Ctrl-C, which is for graphdoctor.
    """
    try:
        yield
    except (GraphDoctorError, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as raised:
        error = raised
        # Leaving a capture raises an error of its own over what the user's capture refused.
        while _SPOILT in str(error) and error.__context__ is not None:
            error = error.__context__
        kept = user_frames(error)
        text = _text(error, kept)
        raise UserCodeError(_sentence(doing, error, kept, is_all=not text), text) from error


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The traceback without frames of torch, graphdoctor and Python's library.

    Where none remain, what the user called is torch's own, and its frames say where it failed.
    """
    frames = list(traceback.extract_tb(error.__traceback__))
    kept = [frame for frame in frames if not is_machinery(frame.filename)]
    return kept or [frame for frame in frames if is_torch(frame.filename)]


def raised_at(error: GraphDoctorError) -> Location | None:
    """The line at which the user's code raised what this error is about."""
    frames = user_frames(error.__cause__) if error.__cause__ is not None else []
    if not frames:
        return None
    return Location(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name)


def is_user_file(filename: str) -> bool:
    """Whether a file is the user's own, and no installed package's."""
    return not is_machinery(filename) and not is_library(filename)


def _sentence(
    doing: str, error: BaseException, frames: list[traceback.FrameSummary], *, is_all: bool
) -> str:
    """What a traceback below it says at length is cut, unless the sentence is all that is shown."""
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    what = _what_happened(error)
    if not is_all and len(what) > _LONGEST:
        what = f"{what[:_LONGEST].rsplit(' ', 1)[0]} ..."
    return f"{doing} {what}{place}"


def _what_happened(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"ended the interpreter with exit code {error.code!r}"
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    if is_out_of_memory(error):
        return f"ran out of memory: {first_line(error)}".rstrip(": ")
    if isinstance(error, StopIteration):
        return (
            "failed: an iterator has no items left; the step is run several times, so let it take its batch as an"
            " argument"
        )
    if isinstance(error, RecursionError):
        return f"recursed without end: {first_line(error)}"
    return f"failed: {in_short(error)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Memory ran out, on the device or on the host (there torch raises a plain RuntimeError)."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def in_short(error: BaseException) -> str:
    """What raised and its first line, for a sentence."""
    return f"{type(error).__name__}: {first_line(error)}".rstrip(": ")


def first_line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a __str__ of the user's may fail as well
        return ""
    return text.strip().split("\n", 1)[0]


def _text(error: BaseException, frames: list[traceback.FrameSummary]) -> str:
    """The frames and the error; "" where that is one line, which the sentence has."""
    shown = traceback.StackSummary.from_list(frames[-_MAX_FRAMES:]).format()
    # format_exception_only repeats a SyntaxError's file, line and caret, which is the frame it has.
    text = "".join([*shown, *traceback.format_exception_only(error)]).rstrip("\n")
    return text if "\n" in text else ""


def instantiate(cls: Any, *args: object, **kwargs: object) -> Any:
    """`cls(*args, **kwargs)`, checked first so that a wrong call is told from a failing one."""
    if not callable(cls):
        raise UsageError(f"{cls!r} should be a class, but is of type {type(cls).__name__}")
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):  # some classes of extensions have none
        signature = None
    if signature is not None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(
                f"{cls.__name__} cannot be made: {error}; its constructor is "
                f"{cls.__name__}{signature}; write get_init_inputs() or graphdoctor_target()"
            ) from None
    with user_code(f"{cls.__name__}()"):
        return cls(*args, **kwargs)


def needed_arguments(called: Callable[..., object]) -> list[str]:
    """The parameters of a function, or of a class's constructor, that have no default."""
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
