"""What an analysis raised -> the fault that a check reports."""

from __future__ import annotations

import traceback

from graphdoctor.values.check import Fault
from graphdoctor.values.errors import CannotDoItHere, GraphDoctorError, UserCodeError


def fault_of(error: BaseException) -> Fault:
    """What an analysis that raised is reported as."""
    if isinstance(error, UserCodeError):
        return Fault("failed", error.exit_code, str(error), error.frames)
    if isinstance(error, CannotDoItHere):
        return Fault("cannot", error.exit_code, str(error))
    if isinstance(error, GraphDoctorError):
        return Fault("usage", error.exit_code, str(error))
    if isinstance(error, SystemExit):
        message = f"it ended the interpreter with exit code {error.code!r}"
        return Fault("failed", UserCodeError.exit_code, message)
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    details = "".join(traceback.format_exception(error))
    return Fault("usage", GraphDoctorError.exit_code, f"a bug in graphdoctor: {what}", details)
