"""The budget of `graphdoctor run`: what is diagnosed when it is used up, and what the note says."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.pipeline import diagnose_program
from graphdoctor.target.program.launch import Program
from graphdoctor.values.options import AnalyzeOptions, Bounds, RunOptions
from graphdoctor.values.report import Report

TWO_STEPS = """\
import torch
first = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(12)]).cuda()
second = torch.nn.Linear(4, 4).cuda()
x = torch.randn(2, 4, device="cuda")
with torch.no_grad():
    for i in range(9):
        y = first(x)
        print(float(y.sum()))
    for i in range(9):
        y = second(x)
        print(float(y.sum()))
"""


def test_after_the_budget_the_first_step_has_its_verdict_and_the_note_names_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "program.py"
    file.write_text(TWO_STEPS)
    doing: list[str] = []

    def run(budget_s: float) -> tuple[list[bool], list[str]]:
        analyze = AnalyzeOptions(device="emulated", budget_s=budget_s)
        options = RunOptions(analyze, Bounds(after=3, steps=3))
        report, _ = diagnose_program(Program(str(file), ()), options, doing.append)
        steps = sorted(report.steps, key=lambda step: step.location.line)
        assert steps[0].report is not None and steps[0].report.verdict == "safe"
        return [step.report is not None for step in steps], [
            *report.notes,
            *(step.reason for step in steps if step.report is None),
        ]

    assert run(90.0) == ([True, True], [])
    diagnosed, (note, reason) = run(0.001)
    assert diagnosed == [True, False]
    assert note.startswith("The diagnosis took ") and "--budget" in note
    missing = "the diagnosis of 1 step; of step 1, comparisons of further steps"
    assert f" s. Its budget of 0.001 s left out {missing}." in note
    assert reason == "The diagnosis of earlier steps used the budget of 0.001 s."
    assert any(said.startswith("step 2, ") and said.endswith(": diagnosing") for said in doing)
    assert doing[-1] == ""  # the program's own output goes on below


COUNTS = """\
import torch
class Net(torch.nn.Linear):
    calls = 0
    def forward(self, x):
        self.calls += 1
        y = super().forward(x)
        return y * 2 if self.calls > 500 else y * LAST
model = Net(4, 4).cuda()
x = torch.randn(2, 4, device="cuda")
with torch.no_grad():
    for i in range(9):
        y = model(x)
"""


@pytest.mark.parametrize(
    ("last", "known"), [("1", "unknown"), ("y.sum().item()", "unsafe")], ids=["safe", "unsafe"]
)
def test_what_the_budget_leaves_out_of_a_step_proves_nothing_and_what_is_known_is_kept(
    tmp_path: Path, last: str, known: str
) -> None:
    """A counter is seen in two steps; what it does to the five hundredth is not, if nothing more is run."""
    file = tmp_path / "program.py"
    file.write_text(COUNTS.replace("LAST", last))

    def run(budget_s: float) -> tuple[Report, tuple[str, ...]]:
        analyze = AnalyzeOptions(device="emulated", budget_s=budget_s, strategies=())
        options = RunOptions(analyze, Bounds(after=3, steps=4))
        program, _ = diagnose_program(Program(str(file), ()), options, lambda doing: None)
        (step,) = program.steps
        assert step.report is not None
        return step.report, program.notes

    whole, notes = run(90.0)
    assert (whole.verdict, whole.iterations, whole.unreached, notes) == ("unsafe", 4, (), ())
    late, (note,) = run(0.001)
    assert (late.verdict, late.iterations) == (known, 2)
    assert {"GD101"} & {one.rule for one in whole.findings} <= {one.rule for one in late.findings}
    assert late.unreached == ("later steps", "steps")
    assert "of step 1, trials of later steps and comparisons of further steps" in note
    assert ("the budget ended before all later steps were tried" in late.reason) == (last == "1")
