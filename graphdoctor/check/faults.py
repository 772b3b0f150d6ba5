"""The fault that a check shows for a target without a report."""

from __future__ import annotations

import traceback

from graphdoctor.check.relative_paths import RelativePaths, is_inside
from graphdoctor.device.processes.process import Ended
from graphdoctor.values.check import Fault, FaultKind
from graphdoctor.values.errors import CannotDoItHere, GraphDoctorError, UserCodeError

_FRAMES_SHOWN = 5


def fault_of(error: BaseException) -> Fault:
    """Of an analysis that raised."""
    if isinstance(error, UserCodeError):
        return Fault("failed", error.exit_code, str(error), error.frames)
    if isinstance(error, GraphDoctorError):
        kind: FaultKind = "cannot" if isinstance(error, CannotDoItHere) else "usage"
        sentence, _, to_paste = str(error).partition("\n\n")
        return Fault(kind, error.exit_code, sentence, to_paste)
    if isinstance(error, SystemExit):
        message = f"it ended the interpreter with exit code {error.code!r}"
        return Fault("failed", UserCodeError.exit_code, message)
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    details = "".join(traceback.format_exception(error))
    return Fault("usage", GraphDoctorError.exit_code, f"a bug in graphdoctor: {what}", details)


def fault_of_process(ended: Ended, relative: RelativePaths) -> Fault:
    """Of a process that left no result, with where its main thread was in the project's own files.

    What the model printed stays out of it: that may differ from run to run.
    """
    own = [match for match in ended.frames() if is_inside(relative.text(match["file"]))]
    frames = [relative.text(match.group().strip()) for match in own[:_FRAMES_SHOWN]]
    kind: FaultKind = "timed-out" if ended.code is None else "crashed"
    return Fault(kind, UserCodeError.exit_code, ended.reason, "\n".join(reversed(frames)))
