"""Whatever happens to a model, in whatever order: with graphed modules it computes what it computes without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from tests.support.graphed_twins import Side, data, total, twins


class Model(nn.Module):
    """A block that runs twice, a tied weight, a branch, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Tanh())
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.block.get_submodule("0").weight
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(self.block(x))
        if float(x.detach().sum()) > 0:
            x = self.tied(x)
        return self.head(x)


def accumulate(side: Side, seed: int) -> torch.Tensor:
    return side.train(inputs(seed), steps=False)


def train(side: Side, seed: int) -> torch.Tensor:
    return side.train(inputs(seed))


def look(side: Side, seed: int) -> torch.Tensor:
    found: torch.Tensor = side.look(inputs(seed))
    return found


def smaller_batch(side: Side, seed: int) -> torch.Tensor:
    return side.train(inputs(seed)[:3])


def other_strides(side: Side, seed: int) -> torch.Tensor:
    return side.train(inputs(seed).t().contiguous().t())


def input_with_gradient(side: Side, seed: int) -> torch.Tensor | None:
    x = inputs(seed).requires_grad_()
    total(side.model(x)).backward()
    return x.grad


def asked_gradients(side: Side, seed: int) -> list[torch.Tensor | None]:
    loss = total(side.model(inputs(seed)))
    wanted = [p for p in side.model.parameters() if p.requires_grad]
    return list(torch.autograd.grad(loss, wanted, allow_unused=True))


def crossed(side: Side, seed: int) -> None:
    first, second = (total(side.model(inputs(each))) for each in (seed, seed + 1))
    first.backward()
    second.backward()


def undifferentiated(side: Side, seed: int) -> torch.Tensor:
    found: torch.Tensor = side.model(inputs(seed)).detach()
    return found


def cast(side: Side, seed: int) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        return side.train(inputs(seed))


def zero_in_place(side: Side, seed: int) -> None:
    side.model.zero_grad(set_to_none=False)


def scale_weights(side: Side, seed: int) -> None:
    with torch.no_grad():
        for parameter in side.model.parameters():
            parameter.mul_(0.9)


def load(side: Side, seed: int) -> None:
    side.model.load_state_dict({n: v.clone() for n, v in side.model.state_dict().items()})


def load_by_assignment(side: Side, seed: int) -> None:
    state = {n: v.clone() for n, v in side.model.state_dict().items()}
    side.model.load_state_dict(state, assign=True)


def new_head(side: Side, seed: int) -> None:
    head: Any = side.model.get_submodule("head")
    head.weight = nn.Parameter(head.weight.detach() * 0.5)


def new_memory(side: Side, seed: int) -> None:
    head: Any = side.model.get_submodule("head")
    head.weight.data = head.weight.data.clone()


def thaw_or_freeze(side: Side, seed: int) -> None:
    side.model.get_submodule("head").requires_grad_(bool(seed % 2))


def set_mode(side: Side, seed: int) -> None:
    side.model.train(bool(seed % 2))


def set_mode_inside(side: Side, seed: int) -> None:
    side.model.get_submodule("block.2").train(bool(seed % 2))


def set_dropout(side: Side, seed: int) -> None:
    dropout: Any = side.model.get_submodule("block.2")
    dropout.p = 0.3 if seed % 2 else 0.6


def hook_inside(side: Side, seed: int) -> None:
    side.model.get_submodule("block.3").register_forward_hook(lambda *args: args[2] * 0.5)


def hook_outside(side: Side, seed: int) -> None:
    side.model.get_submodule("head").register_forward_hook(lambda *args: args[2] + 0.5)


def inputs(seed: int) -> torch.Tensor:
    return data(6, 4, seed=seed)


CALLS = (
    train, accumulate, look, smaller_batch, other_strides, input_with_gradient, asked_gradients,
    crossed, undifferentiated, cast,
)  # fmt: skip
CHANGES = (
    zero_in_place, scale_weights, load, load_by_assignment, new_head, new_memory, thaw_or_freeze,
    set_mode, set_mode_inside, set_dropout, hook_inside, hook_outside,
)  # fmt: skip
EVENT = st.tuples(
    st.one_of(st.sampled_from((train, accumulate)), st.sampled_from(CALLS + CHANGES)),
    st.integers(0, 5),
)


@settings(max_examples=12, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENT, min_size=1, max_size=14))
def test_any_order_of_events_equals_eager(events: list[tuple[Any, int]]) -> None:
    observed = [lambda side: [accumulate(side, seed) for seed in range(3)]]
    with EmulatedDevice(), twins(Model, observed, paths=["block", "tied", "head"]) as pair:
        assert pair.made.modules["block"].graphs == 2
        for event, seed in events:
            pair.both(lambda side, event=event, seed=seed: event(side, seed))


def test_the_events_meet_graphs() -> None:
    """The property would hold of modules that never replay."""
    observed = [lambda side: [accumulate(side, seed) for seed in range(3)]]
    with EmulatedDevice(), twins(Model, observed, paths=["block", "tied", "head"]) as pair:
        replays = {}
        for event in CALLS:
            before = pair.made.replays
            event(pair.graphed, 1)
            replays[event.__name__] = pair.made.replays - before
    served = {name for name, count in replays.items() if count}
    assert served == {
        "train", "accumulate", "asked_gradients", "crossed", "undifferentiated",
        "other_strides", "input_with_gradient",
    }  # fmt: skip


@pytest.mark.gpu
def test_every_event_equals_eager_on_a_gpu() -> None:
    observed = [lambda side: [accumulate(side, seed) for seed in range(3)]]
    changes = [change for change in CHANGES if change not in (hook_inside, hook_outside)]
    for change in (None, *changes):
        with twins(Model, observed, paths=["block", "tied", "head"]) as pair:
            for event in (*CALLS, *([change] if change is not None else []), *CALLS):
                pair.both(lambda side, event=event: event(side, 1))
            assert pair.made.replays > 10
