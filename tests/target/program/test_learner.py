"""Forward passes that no backward pass reaches, as of an agent that acts, are no part of a training step."""

from __future__ import annotations

from pathlib import Path

import torch

from graphdoctor.target.program.events import Event, make_event, places
from graphdoctor.target.program.watch import numbers_of_graph, used
from tests.support.programs import run

# As CleanRL and LeanRL write it: it acts with gradients, several times between two training steps.
ACTING = """\
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 2).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(60):
    if step % 3:
        action = net(torch.randn(1, 4, device="cuda")).argmax().item()
    if step % 5 == 4:
        batch = torch.randn(8, 4, device="cuda")
        loss = net(batch).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        del loss
print(f"{net.weight.sum().item():.6f}")
"""


def test_an_agent_s_acting_is_no_part_of_its_training_step(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(ACTING)
    training = run(file).report.steps[0]
    assert (training.name, training.mode) == ("program.py:10-13", "training")
    assert training.report is not None and training.report.verdict == "safe"


def events_of(*modules: torch.nn.Module) -> tuple[list[Event], list[torch.Tensor]]:
    """Calls of modules one after the other, each with its event, and an event after all."""
    events, results = [], []
    for module in modules:
        events.append(make_event("forward", module, places()))
        results.append(module(torch.ones(2, 4)).sum())
    return [*events, make_event("backward", None, places())], results


def test_passes_that_the_loss_hangs_on_are_kept_and_others_are_not() -> None:
    first, second, third = (torch.nn.Linear(4, 4) for _ in range(3))
    events, results = events_of(first, second, third)
    reached = numbers_of_graph(results[0] + results[2])
    kept = used(events, reached)
    assert [each.subject for each in kept if each.kind == "forward"] == [first, third]
    assert kept[-1].kind == "backward"
    assert numbers_of_graph([results[0], results[1]]) >= numbers_of_graph(results[1])


def test_passes_of_which_autograd_makes_nothing_are_kept() -> None:
    events, _ = events_of(torch.nn.Flatten())
    assert used(events, set()) == events
