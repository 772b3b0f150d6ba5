"""Why a target has no report: the kind, the exit code, and what is shown of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from graphdoctor.check.relative_paths import RelativePaths
from graphdoctor.check.run_targets import fault_of, fault_of_process
from graphdoctor.device.processes.process import Ended
from graphdoctor.values.errors import CannotDoItHere, UsageError, UserCodeError


@pytest.mark.parametrize(
    ("error", "kind", "code", "message"),
    [
        (UserCodeError("shapes differ", frames="net.py:3"), "failed", 3, "shapes differ"),
        (CannotDoItHere("there is no GPU"), "cannot", 4, "there is no GPU"),
        (UsageError("no such file"), "usage", 2, "no such file"),
        (SystemExit(7), "failed", 3, "it ended the interpreter with exit code 7"),
        (KeyError("x"), "usage", 2, "a bug in graphdoctor: KeyError: 'x'"),
        (ValueError(), "usage", 2, "a bug in graphdoctor: ValueError"),
    ],
)
def test_each_error_is_a_fault_with_its_exit_code(
    error: BaseException, kind: str, code: int, message: str
) -> None:
    fault = fault_of(error)
    assert (fault.kind, fault.exit_code, fault.message) == (kind, code, message)
    if isinstance(error, UserCodeError):
        assert fault.details == "net.py:3"
    assert ("KeyError" in fault.details) == isinstance(error, KeyError)


def test_what_is_to_be_pasted_is_no_part_of_the_sentence() -> None:
    """Formats show a message on one line, where its line breaks would be a literal \\n."""
    fault = fault_of(
        UsageError("net.py describes no target; paste this into it\n\ndef f():\n    ...")
    )
    assert fault.message == "net.py describes no target; paste this into it"
    assert fault.details == "def f():\n    ..."


def dump(*files: str) -> str:
    """What faulthandler writes of the main thread, the innermost frame first."""
    frames = [f'  File "{file}", line {at} in f{at}' for at, file in enumerate(files, 1)]
    return "\n".join(["said before", "Thread 0x1 (most recent call first):", *frames])


def test_a_process_that_hangs_shows_the_project_s_own_frames_innermost_last(tmp_path: Path) -> None:
    own = [f"{tmp_path}/net{at}.py" for at in range(7)]
    output = dump(own[0], "/elsewhere/torch.py", *own[1:])
    fault = fault_of_process(Ended(None, output, None, 8.0), RelativePaths(tmp_path))
    assert (fault.kind, fault.exit_code) == ("timed-out", 3)
    assert fault.message == "it did not end within 8 s"
    assert fault.details.splitlines() == [
        'File "net4.py", line 6 in f6',
        'File "net3.py", line 5 in f5',
        'File "net2.py", line 4 in f4',
        'File "net1.py", line 3 in f3',
        'File "net0.py", line 1 in f1',
    ]


def test_a_process_that_ends_by_itself_has_crashed(tmp_path: Path) -> None:
    for code, reason in ((7, "exit code 7"), (-signal.SIGSEGV, "ended by SIGSEGV")):
        fault = fault_of_process(Ended(None, "", code, 8.0), RelativePaths(tmp_path))
        assert (fault.kind, fault.exit_code, fault.details) == ("crashed", 3, "")
        assert fault.message.endswith(reason)
