"""The budget of `graphdoctor run`: what is diagnosed when it is used up, and what the note says."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.pipeline import diagnose_program
from graphdoctor.target.program.launch import Program
from graphdoctor.values.options import AnalyzeOptions, Bounds, RunOptions

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
    assert " s, and begins nothing after its budget of 0.001 s: 1 step not diagnosed." in note
    assert reason == "The diagnosis of earlier steps used the budget of 0.001 s."
    assert any(said.startswith("step 2, ") and said.endswith(": diagnosing") for said in doing)
    assert doing[-1] == ""  # the program's own output goes on below
