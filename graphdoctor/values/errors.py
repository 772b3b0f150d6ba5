"""Errors that graphdoctor reports to people, each with the exit code of the command line."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING

from graphdoctor.values.escape import visible

if TYPE_CHECKING:
    from graphdoctor.values.report import Report


class GraphDoctorError(Exception):
    """Something a person can act on: the text says what was expected, what was found, what to do next."""

    exit_code = 2


class UsageError(GraphDoctorError):
    """The call cannot be carried out as written: wrong file, wrong option, no target found."""

    exit_code = 2


class UserCodeError(GraphDoctorError):
    """The user's own code failed; `frames` is its traceback, trimmed to the user's frames."""

    exit_code = 3

    def __init__(self, message: str, frames: str = "") -> None:
        super().__init__(message)
        self.frames = frames


class RaisesInCapture(UserCodeError):
    """The step runs in eager, and fails on the path that it takes while it is captured."""


class RaisesLater(UserCodeError):
    """The step ran `calls` times from a state, and failed in the next call."""

    def __init__(self, error: UserCodeError, calls: int) -> None:
        super().__init__(str(error), error.frames)
        self.calls = calls


class CannotDoItHere(GraphDoctorError):
    """The machine lacks what was asked for, such as a GPU or a package."""

    exit_code = 4


class Interrupted(KeyboardInterrupt):
    """Ctrl-C was pressed while strategies were tried; `report` has everything that is known."""

    exit_code = 130

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


class HostWaited(AssertionError):
    """What `graphdoctor.no_sync()` raises: the lines on which the host waited for the GPU."""


def require_torch() -> None:
    """Raise CannotDoItHere where no torch is installed; it is not imported."""
    if "torch" not in sys.modules and find_spec("torch") is None:
        raise CannotDoItHere(
            f"there is no PyTorch for {sys.executable}, and this needs it: run graphdoctor with the Python of the "
            "model and install it there; pipx and uvx install graphdoctor in a separate environment"
        )


def raise_if_of_torch(error: Exception) -> None:
    """Raise CannotDoItHere if `error` is that torch is not there, or that it could not be imported."""
    if not isinstance(error, ImportError | OSError):
        return
    if getattr(error, "name", None) == "torch":
        require_torch()
    if _is_from_the_import_of_torch(error.__traceback__):
        raise CannotDoItHere(
            f"the PyTorch of {sys.executable} cannot be imported: {visible(str(error))}; "
            "`python -c 'import torch'` has to work there"
        )


def _is_from_the_import_of_torch(traceback: TracebackType | None) -> bool:
    while traceback is not None:
        names = traceback.tb_frame.f_globals
        if names.get("__name__") == "torch" and traceback.tb_frame.f_code.co_name == "<module>":
            return True
        traceback = traceback.tb_next
    return False
