"""Time that `graphdoctor.capture` of a step adds to each call, on a GPU.

Steps as TD3 has them: an update of two critics from a batch in a named tuple, and an action for one observation.
Whole calls are timed beside the same copies of inputs, replay and copies of results by hand, in turns: this thread's
time on the processor, in blocks short enough never to wait for the GPU. `form_us` is the comparison of the arguments,
`guard_us` that of the state that the step reads, `modes_us` that of torch's switches.

    python benchmarks/gpu/captured_step.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import graphdoctor
from graphdoctor.captured.step_graph import form_of_call

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))

from captured_call import machine, medians_us

ROUNDS = 3
CALLS_BEFORE = 12  # the first ones are eager, and one is studied


@dataclass
class Args:
    gamma: float = 0.99
    policy_noise: float = 0.2
    noise_clip: float = 0.5


class Batch(NamedTuple):
    observations: torch.Tensor
    next_observations: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    dones: torch.Tensor


def _layers(inputs: int, outputs: int) -> nn.Sequential:
    hidden = (nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(256, outputs))


def steps(device: str) -> dict[str, tuple[Callable[..., object], tuple[object, ...]]]:
    """By name a step and the arguments of a call."""
    args, actor = Args(), _layers(17, 6).to(device)
    critics, targets = ([_layers(23, 1).to(device) for _ in range(2)] for _ in range(2))
    weights = [weight for each in critics for weight in each.parameters()]
    optimizer = torch.optim.Adam(weights, lr=3e-4)

    def update(batch: Batch) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            noise = torch.randn_like(batch.actions) * args.policy_noise
            noise = noise.clamp(-args.noise_clip, args.noise_clip)
            actions = (actor(batch.next_observations).tanh() + noise).clamp(-1.0, 1.0)
            seen = torch.cat([batch.next_observations, actions], 1)
            least = torch.min(*(each(seen) for each in targets))
            wanted = batch.rewards + (1 - batch.dones) * args.gamma * least
        seen = torch.cat([batch.observations, batch.actions], 1)
        values = [each(seen) for each in critics]
        losses = [F.mse_loss(each, wanted) for each in values]
        loss = losses[0] + losses[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return *values, *losses, loss

    def act(observation: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            actions: torch.Tensor = actor(observation).tanh()
            return actions + torch.randn_like(actions) * 0.1

    shapes = ((256, 17), (256, 17), (256, 6), (256, 1), (256, 1))
    batch = Batch(*(torch.randn(*shape, device=device) for shape in shapes))
    return {"update": (update, (batch,)), "act": (act, (torch.randn(1, 17, device=device),))}


def figures_us(step: Callable[..., object], args: tuple[Any, ...]) -> dict[str, float]:
    captured: Any = graphdoctor.capture(step)
    for _ in range(CALLS_BEFORE):
        captured(*args)
    assert captured.replayed and not captured.fallbacks(), captured.explain()
    (whole,) = captured._graphs.values()
    form = form_of_call(args, {})
    assert form is not None
    graph, tensors = whole._graph, form.tensors_of(args, {})

    def by_hand() -> object:
        graph.load(tensors)
        graph.replay()
        return graph.build(tensors)

    settle = torch.cuda.synchronize
    hand, call = medians_us(by_hand, partial(captured, *args), settle=settle)
    form_us, guard_us, modes_us = medians_us(
        lambda: form.check(*form.tensors_of(args, {})),  # type: ignore[misc]
        whole._guard.is_same,
        whole._modes.is_same,
    )
    captured.release()
    return {
        "by_hand_us": hand,
        "call_us": call,
        "added_us": call - hand,
        "form_us": form_us,
        "guard_us": guard_us,
        "modes_us": modes_us,
    }


def main() -> None:
    """Measure, print one line a figure, and write all of it as JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = [
        {name: figures_us(*each) for name, each in steps("cuda").items()} for _ in range(ROUNDS)
    ]
    found = {
        name: sorted((one[name] for one in rounds), key=lambda each: each["added_us"])[ROUNDS // 2]
        for name in rounds[0]
    }
    print(machine())
    for figure in found["act"]:
        cells = "".join(f"{name:>12}{figures[figure]:8.1f}" for name, figures in found.items())
        print(f"{figure:12}{cells}")
    if options.json:
        text = json.dumps({"machine": machine(), "rounds": ROUNDS, "steps": found}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
