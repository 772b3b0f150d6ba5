"""What to write instead of an operator whose result is as large as values say: it runs, and computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.values.finding import Finding
from tests.support.diagnosing import diagnosed
from tests.support.programs import run


def found_in(step: Callable[[], object]) -> Finding:
    (found,) = [one for one in diagnosed(step).findings if one.rule == "GD106"]
    return found


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adj", torch.eye(8, device="cuda").roll(1, 0))

    def forward(self, x):
        adj = self.adj
        edge = adj.nonzero().t()
        return x.index_select(0, edge[0])


def test_a_search_of_a_constant_is_kept_in_the_module() -> None:
    found = found_in(lambda: (Attention(), (torch.randn(8, 4, device="cuda"),)))
    assert found.fix.startswith("`adj.nonzero()` is the same in each step: compute it once. ")
    assert "After `adj` changes, call `del self.edge`." in found.fix
    assert found.fix_code == (
        'if not hasattr(self, "edge"):',
        "    self.edge = adj.nonzero().t()",
        "edge = self.edge",
    )


def test_the_indices_of_a_module_s_mask_are_computed_in_its_init() -> None:
    class Selected(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.arange(8, device="cuda") < 3)

        def forward(self, x):
            return x[self.mask] * 2

    found = found_in(lambda: (Selected(), (torch.randn(8, 4, device="cuda"),)))
    made, used = found.fix_code
    assert made == "self.mask_indices = self.mask.nonzero().squeeze(1)  # once, in `__init__`"
    assert used.startswith("return x[self.mask_indices] * 2  # line ")


class AttentionOnce(Attention):
    def forward(self, x):
        adj = self.adj
        if not hasattr(self, "edge"):
            self.edge = adj.nonzero().t()
        edge = self.edge
        return x.index_select(0, edge[0])


def test_a_search_that_is_kept_in_the_module_is_no_finding() -> None:
    assert not diagnosed(lambda: (AttentionOnce(), (torch.randn(8, 4, device="cuda"),))).findings


MASKED = [
    ("return values[mask].sum()", "return torch.where(mask, values, 0).sum()"),
    ("return values[mask].mean()", "return torch.where(mask, values, 0).sum() / mask.sum()"),
    (
        "return values[values > 0].mean()",
        "return torch.where(values > 0, values, 0).sum() / (values > 0).sum()",
    ),
    (
        "return F.cross_entropy(scores[mask], labels[mask])",
        "return F.cross_entropy(scores.flatten(0, -2), labels.masked_fill(~mask, -100).flatten())",
    ),
    (
        "return F.cross_entropy(scores[0][mask[0]], labels[0][mask[0]])",
        "return F.cross_entropy(scores[0], labels[0].masked_fill(~mask[0], -100))",
    ),
]


@pytest.mark.parametrize(("line", "instead"), MASKED)
def test_a_mask_of_the_batch_becomes_a_selection_of_the_same_value(
    line: str, instead: str, tmp_path: Path
) -> None:
    head = "import torch\nimport torch.nn.functional as F\ndef step(values, scores, labels):\n    mask = labels > 3\n"
    file = tmp_path / "step.py"
    file.write_text(f"{head}    {line}\n", encoding="utf-8")

    def inputs():
        return (
            torch.randn(4, 6, device="cuda"),
            torch.randn(4, 6, 9, device="cuda"),
            torch.randint(0, 9, (4, 6), device="cuda"),
        )

    def defined(text: str):
        names: dict[str, object] = {}
        exec(compile(text, str(file), "exec"), names)
        return names["step"]

    found = found_in(lambda: (defined(file.read_text(encoding="utf-8")), inputs()))
    assert found.fix_code == (instead,)
    with EmulatedDevice():
        given = inputs()
        before, after = (defined(f"{head}    {each}\n")(*given) for each in (line, instead))
        torch.testing.assert_close(before, after)


PROGRAM = """\
import torch
import torch.nn.functional as F
torch.manual_seed(0)
x, y = torch.randn(12, 4, device="cuda"), torch.randint(0, 3, (12,), device="cuda")
train_mask = torch.arange(12, device="cuda") < 8
model = torch.nn.Linear(4, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(10):
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
"""


def test_the_indices_of_a_constant_mask_are_computed_before_the_loop(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM, encoding="utf-8")
    report = run(file).report.steps[0].report
    assert report is not None
    (found,) = (one for one in report.findings if one.rule == "GD106")
    made, used = found.fix_code
    assert made == (
        "train_mask_indices = train_mask.nonzero().squeeze(1)  # once, before the loop on line 8"
    )
    assert used == (
        "loss = F.cross_entropy(out[train_mask_indices], y[train_mask_indices])  # line 11"
    )
    fixed = PROGRAM.splitlines()
    fixed[10] = f"    {used}"
    fixed.insert(7, made)
    file = tmp_path / "fixed.py"
    file.write_text("\n".join(fixed), encoding="utf-8")
    report = run(file).report.steps[0].report
    assert report is not None and all(one.rule != "GD106" for one in report.findings)


def test_counts_that_are_a_list_give_the_size_of_the_repetition() -> None:
    def repeated() -> object:
        def step(x):
            counts = [2, 3]
            rows = torch.repeat_interleave(x, torch.tensor(counts, device="cuda"))
            return rows.sin()

        return step, (torch.randn(2, device="cuda"),)

    found = found_in(repeated)
    assert found.fix_code == (
        'rows = torch.repeat_interleave(x, torch.tensor(counts, device="cuda"), output_size=sum(counts))'.replace(
            '"', "'"
        ),
    )
