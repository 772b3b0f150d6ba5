"""The exit code of the command line that each error stands for, as the pages of the commands say."""

from __future__ import annotations

import pytest

from graphdoctor.values.errors import (
    CannotDoItHere,
    GraphDoctorError,
    RaisesInCapture,
    RaisesLater,
    UsageError,
    UserCodeError,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GraphDoctorError("no"), 2),
        (UsageError("no such file"), 2),
        (UserCodeError("it raised"), 3),
        (RaisesInCapture("it raised"), 3),
        (RaisesLater(UserCodeError("it raised", "frames"), 2), 3),
        (CannotDoItHere("no GPU"), 4),
    ],
)
def test_each_error_has_its_exit_code(error: GraphDoctorError, code: int) -> None:
    assert error.exit_code == code
