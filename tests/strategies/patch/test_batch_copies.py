"""Steps that copy their batch to the GPU: what stands above the captured call, and what the captured step copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from graphdoctor.strategies.patch.made import with_patch
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location
from graphdoctor.values.program import ProgramStep
from tests.strategies.patch.test_capture_step import step_in
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
