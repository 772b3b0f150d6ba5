"""A step that was kept, and its diagnosis in the middle of the program."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from graphdoctor.target.program.studies import Studies
from graphdoctor.target.state.snapshot import snapshot
from graphdoctor.values.options import Bounds


def interrupted(target: object) -> object:
    raise KeyboardInterrupt


def kept_step() -> Any:
    return SimpleNamespace(
        kept=SimpleNamespace(roots={}, start=snapshot({})),
        target=lambda iterations: SimpleNamespace(roots={}),
        beginnings=2,
        passes_per_step=1,
        is_done=False,
        reason="",
    )


def test_a_step_whose_diagnosis_is_interrupted_is_said_to_be() -> None:
    """Not that it was seen too few times: Ctrl-C loses what was found of it, and nothing else."""
    studies = Studies(interrupted, Bounds(after=3, steps=4), lambda waits: nullcontext())
    step = kept_step()
    with pytest.raises(KeyboardInterrupt):
        studies.finish(step)
    assert (step.reason, step.is_done) == ("Its diagnosis was interrupted.", True)
    assert not studies.is_busy
