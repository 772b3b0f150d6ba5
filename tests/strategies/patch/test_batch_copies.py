"""Steps that copy their batch to the GPU: the captured step does so, where nothing else needs the copies."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.strategies.patch.edits import graph_step
from graphdoctor.strategies.patch.edits.capture_step import CaptureStep
from graphdoctor.strategies.patch.made import with_patch
from graphdoctor.strategies.patch.source import changed_sources
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location
from graphdoctor.values.program import ProgramStep
from tests.captured.test_step_batches import Copies
from tests.strategies.patch.test_capture_step import step_in
from tests.strategies.patch.test_changed_programs import patched, tried_in
from tests.support.reports import HOST_READ, of_program

HEAD = """\
import torch
from torch import nn

device = "cuda"
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [torch.ones(2, 4) for _ in range(3)]
"""
FUNCTION = (
    HEAD
    + """\


def train_step(x, y):
    {above}
    loss = model(x).sub(y).square().mean()  # first
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last
    return loss


for x in loader:
    print(train_step(x, x).item())
"""
)
LOOP = (
    HEAD
    + """\
shift = torch.ones(4)
for x in loader:
    optimizer.zero_grad()  # first
    {above}
    loss = {loss}.square().mean()
    loss.backward()
    optimizer.step()  # last
    print(loss.item())
"""
)


def _changed(file: Path, source: str, *marked: str) -> tuple[str, ProgramStep]:
    """The diff for a program, with a copy to the GPU found in each line that has one of these texts, and its step."""
    lines = source.split("\n")
    copies = [
        replace(
            HOST_READ,
            rule="GD104",
            name="host-to-device-copy",
            operator="aten._to_copy.default",
            location=Location(str(file), number, "<module>"),
        )
        for number, line in enumerate(lines, 1)
        if any(text in line for text in marked)
    ]
    assert len(copies) == len(marked)
    return _patched(file, source, *copies)


def _patched(file: Path, source: str, *copies: Finding) -> tuple[str, ProgramStep]:
    report, _ = with_patch(of_program(step_in(file, source, *copies)), str(file.parent))
    assert report.patch is not None
    return report.patch.diff, report.steps[0]


@pytest.mark.parametrize(
    "above",
    [
        "x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)",
        "x = x.cuda()",
        '"""One step."""',
    ],
)
def test_a_function_that_copies_its_batch_first_is_captured_as_it_is(
    above: str, tmp_path: Path
) -> None:
    diff, _ = _changed(tmp_path / "train.py", FUNCTION.format(above=above))
    added = [line for line in diff.split("\n") if line.startswith("+") and line[1:2] != "+"]
    assert added == ["+import graphdoctor", "+@graphdoctor.capture"]


@pytest.mark.parametrize(
    "above", ["x = x.pin_memory().to(device)", "x = model[0].to(device)", "print(x)"]
)
def test_a_function_that_does_more_is_split(above: str, tmp_path: Path) -> None:
    diff, _ = _changed(tmp_path / "train.py", FUNCTION.format(above=above))
    assert "+def training_step(" in diff


@pytest.mark.parametrize(
    ("above", "loss", "marked"),
    [
        pytest.param("x = x.to(device)", "model(x)", ["x.to("], id="above the call"),
        pytest.param("pass", "model(x.to(device))", ["x.to("], id="an argument"),
        pytest.param(
            "x = {k: v.cuda() for k, v in x.items()}", 'model(x["a"])', ["v.cuda("], id="items"
        ),
        pytest.param(
            "for k in x: x[k] = x[k].to(device)", 'model(x["a"])', ["x[k].to("], id="in place"
        ),
    ],
)
def test_copies_of_the_batch_are_handled(
    above: str, loss: str, marked: list[str], tmp_path: Path
) -> None:
    _, step = _changed(tmp_path / "train.py", LOOP.format(above=above, loss=loss), *marked)
    assert "GD104" in step.cured and "once GD104" not in step.change


@pytest.mark.parametrize(
    ("above", "loss", "marked"),
    [
        pytest.param("pass", "model(x) + shift.to(device)", ["shift.to("], id="a constant"),
        pytest.param("pass", "model(x.to(device) + shift.cuda())", ["x.to("], id="both on a line"),
        pytest.param(
            "y = torch.arange(4)", "model(x) + y.to(device)", ["y.to("], id="made in the step"
        ),
        pytest.param(
            "x = x.to(device)", "model(x) + shift.cuda()", ["x.to(", "shift.c"], id="one of two"
        ),
    ],
)
def test_other_copies_are_left_to_the_reader(
    above: str, loss: str, marked: list[str], tmp_path: Path
) -> None:
    _, step = _changed(tmp_path / "train.py", LOOP.format(above=above, loss=loss), *marked)
    assert step.change and "GD104" not in step.cured


@pytest.mark.parametrize(("marked", "is_cured"), [(["y ="], True), (["y =", "loss ="], False)])
def test_what_is_found_above_the_captured_function_is_handled(
    marked: list[str], is_cured: bool, tmp_path: Path
) -> None:
    """As a GAN draws its labels with NumPy, and copies them."""
    file = tmp_path / "train.py"
    above = "y = torch.FloatTensor([2.0, 3.0]).to(device)"
    source = LOOP.format(above=above, loss="(model(x).sum(1) - y)")
    found = [
        replace(HOST_READ, rule="GD105", location=Location(str(file), number, "<module>"))
        for number, line in enumerate(source.split("\n"), 1)
        if any(text in line for text in marked)
    ]
    _, step = _patched(file, source, *found)
    assert step.change and ("GD105" in step.cured) == is_cured


def test_so_is_what_is_found_in_a_function_that_is_called_above_it(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    above = "y = torch.FloatTensor([2.0, 3.0]).to(device)"
    source = LOOP.format(above=above, loss="(model(x).sum(1) - y)")
    caller = 1 + next(n for n, line in enumerate(source.split("\n")) if "y =" in line)
    place, stack = Location("draws.py", 3, "labels"), Location(str(file), caller, "<module>")
    found = replace(HOST_READ, rule="GD105", location=place, stack=(stack,))
    _, step = _patched(file, source, found)
    assert step.change and "GD105" in step.cured


def test_an_index_on_the_cpu_is_no_copy_of_the_batch(tmp_path: Path) -> None:
    file, source = tmp_path / "train.py", LOOP.format(above="pass", loss="model(x.to(device))[y]")
    line = next(n for n, text in enumerate(source.split("\n"), 1) if "x.to(" in text)
    hidden = replace(
        HOST_READ,
        rule="GD104",
        operator="aten.index.Tensor",
        location=Location(str(file), line, "<module>"),
    )
    _, step = _patched(file, source, hidden)
    assert step.change and "GD104" not in step.cured


# In a loop over `batch`, which is a pair or a dictionary: {above}, the step of `x` and `y`, and {below}.
LOADED = (
    HEAD
    + """\
from torch.autograd import Variable

for x, y, batch in loader:
{above}
    loss = (model(x) - y).square().mean()  # first
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # last
{below}
"""
)


def _written(file: Path, above: str, below: str = "print(loss.item())") -> tuple[list[str], str]:
    """The statements that begin the captured function, without what computes the loss, and those above its call."""
    source = LOADED.format(above=textwrap.indent(above, "    "), below=f"    {below}")
    proposal = CaptureStep().propose(step_in(file, source))
    text = changed_sources(proposal.changes)[str(file)][1]
    function = text.split("def train_step")[1].split("    loss = ")[0]
    loop = text.split("in loader:\n")[1].split("train_step(")[0].removesuffix("loss = ").rstrip(" ")
    return textwrap.dedent(function.partition("\n")[2]).splitlines(), textwrap.dedent(loop)


@pytest.mark.parametrize(
    "above",
    [
        "x, y = x.to(device), y.to(device)",
        "x = x.cuda(non_blocking=True)\n# Classes.\ny = y.float().to(device, torch.float64)",
        "x = x.view(x.size(0), -1).to(device)",
        "x = Variable(x.type(torch.cuda.FloatTensor))",
        "batch = [each.to(device) for each in batch]\nx, y = batch",
        "batch = tuple(t.cuda() for t in batch)\nx = batch[0]",
        "batch = {k: v.to(device) for k, v in batch.items()}\nx, y = batch['x'], batch['y']",
    ],
)
def test_a_captured_step_copies_the_batch_that_the_loop_copied(above: str, tmp_path: Path) -> None:
    inside, outside = _written(tmp_path / "train.py", above)
    assert inside == above.split("\n") and not outside


def test_an_item_of_a_batch_is_given_without_the_rest_of_it(tmp_path: Path) -> None:
    """Which may vary in what no graph takes: the names of files."""
    above = 'x = batch["x"].to(device)\n# Classes.\ny = batch["y"][0].to(device)'
    inside, outside = _written(tmp_path / "train.py", above)
    assert inside == ["x = x.to(device)", "# Classes.", "y = y.to(device)"]
    assert outside == 'x = batch["x"]\ny = batch["y"][0]\n'


@pytest.mark.parametrize("below", ["seen = len(x)", "print(x.shape[0] * loss.item(), x.size(0))"])
def test_sizes_are_read_of_the_batch_on_the_cpu(below: str, tmp_path: Path) -> None:
    inside, outside = _written(tmp_path / "train.py", "x = x.to(device)", below)
    assert inside and not outside


@pytest.mark.parametrize(
    ("above", "below"),
    [
        pytest.param("x = x.to(device)", "kept = x", id="read after the step"),
        pytest.param("x = x.to(device)\nn = x.sum().item()", "print(n)", id="read before it"),
        pytest.param("x = y.view(2, 8).to(device)", "print(x.size(0))", id="of another size"),
        pytest.param("x = x.to(next(model.parameters()).device)", "pass", id="another call"),
        pytest.param("x, y = batch, y.to(device)", "pass", id="one of two is none"),
        pytest.param("x = [t.to(device) for t in batch if t.dim()]", "pass", id="some of them"),
    ],
)
def test_copies_that_something_else_needs_stay_in_the_loop(
    above: str, below: str, tmp_path: Path
) -> None:
    inside, outside = _written(tmp_path / "train.py", above, below)
    assert not inside and outside == above + "\n"


TRIED = """\
import torch
from collections import UserDict
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
device = torch.device("cuda")
model = nn.Linear(6, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = [{{"x": torch.randn(6), "y": torch.tensor(i % 3), "name": f"{{i}}.jpg"}} for i in range(48)]


def collate(rows):
    return UserDict({{k: torch.stack([row[k] for row in rows]) for k in ("x", "y")}})


seen = 0
for batch in DataLoader(rows, 4{collate}):
    {above}
    loss = nn.functional.cross_entropy(model({x}), {y})
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += len({x})
    print(seen, loss.item())
"""


@pytest.mark.parametrize(
    ("above", "x", "y", "collate"),
    [
        pytest.param(
            'x, y = batch["x"].to(device), batch["y"].to(device)', "x", "y", "", id="items"
        ),
        pytest.param(
            "batch = {k: v.to(device) for k, v in batch.items()}",
            'batch["x"]', 'batch["y"]', ", collate_fn=collate", id="a mapping",
        ),
    ],
)  # fmt: skip
def test_a_program_whose_captured_step_copies_the_batch_keeps_its_results(
    above: str, x: str, y: str, collate: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(TRIED.format(above=above, x=x, y=y, collate=collate))
    patch = tried_in(file, patched(file)).patch
    assert patch is not None and "are bitwise equal; 9 calls were replayed" in patch.tried, patch
    assert ".to(" in patch.diff.partition("+def train_step(")[2].partition("+    return loss")[0]


@pytest.mark.parametrize(
    ("pins", "options", "sends"),
    [
        pytest.param(False, "", True, id="pageable"),
        pytest.param(True, ", non_blocking=True", True, id="pinned-non_blocking"),
        # After a blocking copy the program may write to its tensor.
        pytest.param(True, "", False, id="pinned"),
    ],
)
def test_the_plain_class_copies_a_batch_as_the_step_would_and_waits_for_no_pageable_one(
    pins: bool, options: str, sends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        f"{graph_step._CODE}\n\n@GraphedStep\ndef step(x):\n    return x.to('cuda'{options}) * 2\n"
    )
    made: dict[str, Any] = {"torch": torch}
    with EmulatedDevice():
        exec(code, made)
        for number in range(7):
            if number == 4:  # the first replay after that of the capture
                copies = Copies(monkeypatch)
            x = torch.full((4,), float(number))
            given = x.pin_memory() if pins else x
            assert made["step"](given).tolist() == [2.0 * number] * 4
    assert made["step"].graph is not None
    assert len(copies.of("send")) == (3 if sends else 0)
