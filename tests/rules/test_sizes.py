"""What to write instead of an operator whose result is as large as values say: it runs, and computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.values.finding import Finding, by_cure
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


def packed(x, y):
    """As a vision transformer packs images of several sizes: ids, lengths, and the longest of them."""
    parts = [x, y]
    counts = [part.shape[0] for part in parts]
    ids = torch.repeat_interleave(
        torch.arange(2, device=x.device), torch.tensor(counts, device=x.device)
    )
    lengths = torch.tensor([part.shape[0] for part in parts], device=x.device)
    places = torch.arange(lengths.amax().item(), device=x.device)
    counts = torch.tensor(counts, device=x.device, dtype=torch.float32)
    most = counts.max().item()
    shown = torch.zeros(int(most), device=x.device)
    return ids, places, counts, shown


def packed_without_copies(x, y):
    """The same, after each cure as the findings write it."""
    parts = [x, y]
    counts = [part.shape[0] for part in parts]
    ids = torch.repeat_interleave(
        torch.arange(2, device=x.device),
        torch.stack([torch.full((), n, device=x.device) for n in counts]),
        output_size=sum(counts),
    )
    places = torch.arange(max(part.shape[0] for part in parts), device=x.device)
    most = max(counts)
    counts = torch.stack([torch.full((), n, device=x.device, dtype=torch.float32) for n in counts])
    shown = torch.zeros(int(most), device=x.device)
    return ids, places, counts, shown


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4, device="cuda"), torch.randn(5, 4, device="cuda")


def test_a_repetition_by_sizes_is_one_finding_with_one_cure() -> None:
    findings = diagnosed(lambda: (packed, images())).findings
    cause = next(
        group
        for group in by_cure(findings, lambda one: one)
        if len({one.rule for one in group}) > 1
    )
    assert {one.rule for one in cause} == {"GD105", "GD106"}
    (text,) = {one.edits[0].new_text for one in cause}
    assert text == (
        "torch.repeat_interleave(torch.arange(2, device=x.device), "
        "torch.stack([torch.full((), n, device=x.device) for n in counts]), output_size=sum(counts))"
    )


def test_a_number_that_the_program_has_in_a_list_is_taken_from_the_list() -> None:
    reads = [one for one in diagnosed(lambda: (packed, images())).findings if one.rule == "GD101"]
    direct, shadowed = reads
    assert direct.edits[0].new_text == "max(part.shape[0] for part in parts)"
    assert "Delete line" in shadowed.fix and shadowed.fix_code == ("most = max(counts)",)


def test_a_step_whose_sizes_are_filled_on_the_gpu_has_no_finding_and_computes_the_same() -> None:
    assert not diagnosed(lambda: (packed_without_copies, images())).findings
    given = torch.randn(3, 4), torch.randn(5, 4)
    for was, now in zip(packed(*given), packed_without_copies(*given), strict=True):
        assert torch.equal(was, now) and was.dtype == now.dtype


def test_numbers_that_are_no_sizes_are_not_filled_on_the_gpu() -> None:
    def step(x, scores):
        values = torch.tensor([score * 2 for score in scores], device=x.device)
        return x * values

    (found,) = diagnosed(lambda: (step, (torch.randn(2, device="cuda"), [0.1, 0.2]))).findings
    assert found.rule == "GD105" and "sizes" not in found.fix


def test_a_read_that_becomes_a_size_is_not_replaced_by_a_tensor() -> None:
    def step(x):
        count = x.argmax().item()
        return torch.zeros(8, device=x.device)[:1] * torch.arange(
            count + 0, device=x.device
        ).sum(), torch.arange(count, device=x.device)

    found = [
        one
        for one in diagnosed(lambda: (step, (torch.eye(8, device="cuda")[3],))).findings
        if one.rule == "GD101"
    ]
    assert found[0].fix.startswith("`arange` takes a Python number.") and not found[0].edits


def test_selected_rows_keep_their_number_if_it_is_the_same_in_each_step() -> None:
    def selected() -> object:
        def step(x):
            mask = torch.arange(4, device=x.device) < 3
            rows = x[mask]
            return rows.sin()

        return step, (torch.randn(4, 2, device="cuda"),)

    found = found_in(selected)
    assert "the result then has the shape of `x`" in found.fix
    assert found.fix_code == ("rows = x[torch.nonzero_static(mask, size=3).squeeze(1)]",)


def test_selected_elements_keep_their_number_if_it_is_the_same_in_each_step() -> None:
    """sthalles/SimCLR takes the diagonal out of its similarities, and views what is left as rows."""

    def selected() -> object:
        def step(x):
            mask = torch.eye(4, dtype=torch.bool, device=x.device)
            others = x[~mask].view(4, -1)
            return others.sin()

        return step, (torch.randn(4, 4, device="cuda"),)

    def followed() -> object:
        def step(x):
            mask = torch.eye(4, dtype=torch.bool, device=x.device)
            others = x[torch.nonzero_static(~mask, size=12).unbind(1)].view(4, -1)
            return others.sin()

        return step, (torch.randn(4, 4, device="cuda"),)

    assert found_in(selected).fix_code == (
        "others = x[torch.nonzero_static(~mask, size=12).unbind(1)].view(4, -1)",
    )
    assert not diagnosed(followed).findings
    x, mask = torch.randn(4, 4), torch.eye(4, dtype=torch.bool)
    assert torch.equal(x[~mask], x[torch.nonzero_static(~mask, size=12).unbind(1)])


def test_selected_rows_whose_number_differs_keep_the_full_shape() -> None:
    def selected() -> object:
        def step(x):
            mask = x.sum(1) > 0
            rows = x[mask]
            return rows.sin()

        return step, (torch.randn(64, 2, device="cuda"),)

    found = found_in(selected)
    assert found.fix.startswith("Keep all elements and set the others to 0") and not found.fix_code
