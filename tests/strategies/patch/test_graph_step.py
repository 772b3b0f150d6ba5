"""`--plain` writes a class of the program's own, which passes the trial, or says why it does not."""

from __future__ import annotations

import ast
from itertools import takewhile
from pathlib import Path

from msgspec.structs import replace as change

from graphdoctor.strategies.patch.made import with_patch
from graphdoctor.values.program import ProgramReport
from tests.strategies.patch.test_changed_programs import patched, tried_in
from tests.support.programs import SAMPLES

# Like a residual MLP of a public repository: AdamW, and a last batch that is shorter.
RESIDUAL = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        return x + self.inner(x)


torch.manual_seed(0)
model = nn.Sequential(Block(8), nn.Linear(8, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = [(torch.randn(n, 8), torch.randint(0, 4, (n,))) for n in [4] * 9 + [3]]
for epoch in range(2):
    total = 0.0
    for x, y in data:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(data):.6f}")
"""


def plainly_patched(file: Path, source: str, *, is_tried: bool = True) -> ProgramReport:
    file.write_text(source)
    report, _, program = patched(file)
    report, choice = with_patch(report, str(file.parent), is_plain=True)
    return tried_in(file, (report, choice, program)) if is_tried else report


def test_a_residual_mlp_gets_a_short_class_that_replays_its_step(tmp_path: Path) -> None:
    report = plainly_patched(tmp_path / "residual.py", RESIDUAL)
    patch = report.patch
    assert patch is not None and patch.status == "same results", patch
    step = report.steps[0]
    assert step.report is not None and step.report.recommendation is not None
    eager = change(step.report.recommendation, strategy="none")
    step = change(step, report=change(step.report, recommendation=eager))
    again, _ = with_patch(change(report, steps=(step,)), str(tmp_path), is_plain=True)
    advised = again.steps[0].report
    assert advised is not None and advised.recommendation is not None
    assert "`graphdoctor run --diff FILE --plain` writes" in advised.recommendation.sentence
    assert patch.shapes.endswith("such as a shorter last one, eagerly.")
    # Of 20 steps, three warm the graph up and two have the shorter batch.
    assert patch.tried.startswith("with capturable optimizers in both, printed output is identical")
    assert "after 20 steps are bitwise equal; 15 calls were replayed" in patch.tried
    added = [row[1:] for row in patch.diff.splitlines() if row.startswith("+") and row[:3] != "+++"]
    assert "graphdoctor" not in "".join(added) and "        loss = train_step(x, y)" in added
    begin = added.index("class GraphedStep:")
    body = takewhile(lambda row: row[:1] in ("", " "), added[begin + 1 :])
    (made,) = ast.parse("\n".join((added[begin], *body))).body
    assert 20 < (made.end_lineno or 0) - made.lineno < 60


def test_an_image_program_without_a_schedule_gets_the_same(tmp_path: Path) -> None:
    source = (SAMPLES / "image_training.py").read_text()
    source = "".join(row for row in source.splitlines(True) if "scheduler" not in row)
    report = plainly_patched(tmp_path / "image_training.py", source)
    assert report.patch is not None and report.patch.status == "same results", report.patch
    assert "+@GraphedStep\n" in report.patch.diff
    assert "21 calls were replayed" in report.patch.tried and "GD117" in report.steps[0].cured


def test_a_schedule_is_refused_with_the_reason(tmp_path: Path) -> None:
    source = RESIDUAL.replace(
        "data = [", "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\ndata = [", 1
    )
    source = source.replace('    print(f"epoch', '    scheduler.step()\n    print(f"epoch', 1)
    report = plainly_patched(tmp_path / "schedule.py", source, is_tried=False)
    assert report.patch is not None and (report.patch.status, report.patch.diff) == ("left out", "")
    assert report.patch.tried == (
        "Step 1: `StepLR` (line 17) changes the learning rate, which the graph would freeze;"
        " `--diff` without `--plain` takes it, by `graphdoctor.capture`."
    )
