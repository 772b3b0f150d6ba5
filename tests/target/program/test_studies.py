"""A step that was kept, and its diagnosis in the middle of the program."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphdoctor.target.program.studies import Studies
from graphdoctor.target.state.snapshot import snapshot
from graphdoctor.values.errors import Interrupted
from graphdoctor.values.options import Bounds
from graphdoctor.values.program import NotReached
from tests.support.programs import run
from tests.support.reports import PARTLY_SAFE


def interrupted(target: object) -> object:
    raise KeyboardInterrupt


def kept_step() -> Any:
    return SimpleNamespace(
        saved=SimpleNamespace(roots={}, start=snapshot({})),
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
    assert step.outcome == NotReached("Its diagnosis was interrupted.") and step.is_done
    assert not studies.is_busy


def test_an_interrupted_step_keeps_the_report_that_is_known() -> None:
    def strategies_interrupted(target: object) -> object:
        raise Interrupted(PARTLY_SAFE)

    studies = Studies(strategies_interrupted, Bounds(after=3, steps=4), lambda waits: nullcontext())
    step = kept_step()
    with pytest.raises(KeyboardInterrupt) as caught:
        studies.finish(step)
    assert caught.type is KeyboardInterrupt
    assert (step.outcome, step.reason) == (PARTLY_SAFE, "")
    assert studies.wall_s > 0.0


def test_a_program_that_is_interrupted_is_not_kept_by_a_diagnosis(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("""\
import torch
model = torch.nn.Linear(4, 4).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    loss = model(torch.randn(2, 4, device="cuda")).square().mean()
    loss.backward()
    opt.step()
raise KeyboardInterrupt
""")
    seen = run(file).report
    (step,) = seen.steps
    assert (seen.ending, seen.exit_code) == ("interrupted", 130)
    assert step.report is None and "interrupted before its diagnosis" in step.reason


def test_a_captured_step_without_arguments_is_diagnosed_outside_of_its_captures(
    tmp_path: Path,
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        """\
import graphdoctor
import torch
from torch import nn

model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(8, 4).cuda()


@graphdoctor.capture
def train_step():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


for epoch in range(20):
    loss = train_step()
""",
        encoding="utf-8",
    )
    ran = run(program, after=5)
    assert [verdict for _, _, verdict, _ in ran.summary] == ["safe"]
