"""What a step takes and fills while it runs, as programs have it -> diagnosed, and the program none the wiser."""

from __future__ import annotations

import builtins
from pathlib import Path

from tests.support.programs import Ran, run

HEAD = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 4).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def ran(tmp_path: Path, body: str, **how: object) -> Ran:
    file = tmp_path / "program.py"
    file.write_text(HEAD + body)
    return run(file, **how)  # type: ignore[arg-type]


def test_a_batch_taken_from_an_iterator_inside_the_step_is_not_taken_twice(tmp_path: Path) -> None:
    body = """\
data = iter([torch.full((2, 4), float(i), device="cuda") for i in range(12)])
def batches():
    yield from data
source = batches()
for i in range(12):
    opt.zero_grad()
    x = next(source)
    loss = model(x).mean()
    loss.backward()
    opt.step()
    print(x[0, 0].item())
"""
    seen = ran(tmp_path, body)
    (step,) = seen.report.steps
    assert step.report is not None, step.reason
    (found,) = (one for one in step.report.findings if one.rule == "GD218")
    assert found.location is not None and found.location.line == 12
    assert seen.printed.split() == [f"{i}.0" for i in range(12)]
    assert next is builtins.next and type(next) is type(iter)


def test_a_batch_that_is_fetched_in_the_step_for_the_next_one_is_given_again(
    tmp_path: Path,
) -> None:
    """As nanoGPT and llama2.c prefetch; the iterator is a variable of a function here."""
    body = """\
def train():
    source = (torch.full((2, 4), float(i), device="cuda") for i in range(30))
    x = next(source)
    for i in range(12):
        for _ in range(2):
            loss = model(x).mean()
            x = next(source)
            loss.backward()
        opt.step()
        opt.zero_grad()
        del loss
    print(x[0, 0].item())
train()
"""
    seen = ran(tmp_path, body)
    (step,) = seen.report.steps
    assert step.report is not None, step.reason
    assert (step.passes, seen.printed) == (1, "24.0\n")
    places = {one.rule: one.location for one in step.report.findings}
    assert places["GD218"] is not None and places["GD218"].line == 12


def test_items_that_are_taken_otherwise_than_by_next_are_not_given_again(tmp_path: Path) -> None:
    body = """\
source = (torch.full((2, 4), float(i), device="cuda") for i in range(30))
for i in range(12):
    opt.zero_grad()
    for x in source:
        break
    model(x).mean().backward()
    opt.step()
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is None and "`source`" in step.reason


def test_an_agent_that_acts_with_gradients_is_a_step_beside_its_update(tmp_path: Path) -> None:
    body = """\
for update in range(10):
    for t in range(4):
        action = model(torch.randn(1, 4, device="cuda")).argmax()
    loss = model(torch.randn(8, 4, device="cuda")).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del loss
"""
    found = {(step.location.line, step.mode) for step in ran(tmp_path, body).report.steps}
    assert found == {(8, "inference"), (9, "training")}


def test_lists_that_the_program_makes_for_the_step_to_fill_are_empty_in_each_step(
    tmp_path: Path,
) -> None:
    """As the episodes of REINFORCE; here the program ends before there are as many steps as are wanted."""
    body = """\
for episode in range(7):
    losses, seen = [], {"count": []}
    for t in range(3):
        losses.append(model(torch.randn(2, 4, device="cuda")).mean())
        seen["count"].append(t)
    assert len(losses) == len(seen["count"]) == 3
    opt.zero_grad()
    torch.stack(losses).sum().backward()
    opt.step()
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is not None, step.reason


def test_a_tensor_that_the_program_replaces_between_steps_is_a_finding_where_it_is_read(
    tmp_path: Path,
) -> None:
    body = """\
for i in range(10):
    model.scale = torch.full((4,), 1.0 + i, device="cuda")
    x = torch.randn(2, 4, device="cuda")
    loss = (model(x) * model.scale).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del loss
"""
    (step,) = ran(tmp_path, body).report.steps
    assert step.report is not None and step.report.verdict != "unknown"
    (found,) = (one for one in step.report.findings if one.rule == "GD205")
    assert found.location is not None and found.location.line == 9
    assert "model.scale" in found.message
