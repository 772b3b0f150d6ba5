"""Whatever happens to a captured model, in whatever order: its answers are its eager twin's, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import Branching, on_device, rand, replayed

Event = Callable[[nn.Module, int], None]


class Subject(nn.Module):
    """Weights, buffers, numbers, a container, dropout and a norm; two blocks share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(4, 4)
        self.third = nn.Linear(4, 4)
        self.third.weight = self.first.weight
        self.register_buffer("shift", torch.zeros(4))
        self.register_buffer("factor", torch.ones(()))
        self.scale = 2.0
        self.powers = [1.0, 2.0]

    def forward(self, x: torch.Tensor, twice: bool = False) -> dict[str, torch.Tensor]:
        y = self.drop(self.norm(self.first(x))) * self.scale + self.shift
        z = self.third(torch.tanh(self.second(y))) * self.factor
        return {"y": y, "z": z ** len(self.powers) if twice else z * self.powers[0]}


def _numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def _in_place(model: Any, seed: int) -> None:
    with torch.no_grad():
        model.first.weight.add_(_numbers(seed, 4, 4))


def _data(model: Any, seed: int) -> None:
    model.second.weight.data = _numbers(seed, 4, 4)


def _parameter(model: Any, seed: int) -> None:
    model.second.bias = nn.Parameter(_numbers(seed, 4))


def _load(model: Any, seed: int) -> None:
    state = model.state_dict()
    model.load_state_dict({n: t + seed if t.is_floating_point() else t for n, t in state.items()})


def _assign(model: Any, seed: int) -> None:
    state = {n: t.clone() * 0.5 for n, t in model.state_dict().items() if t.is_floating_point()}
    model.load_state_dict(state, strict=False, assign=True)


def _submodule(model: Any, seed: int) -> None:
    layer = nn.Linear(4, 4).cuda()
    with torch.no_grad():
        layer.weight.copy_(_numbers(seed, 4, 4))
        layer.bias.zero_()
    model.second = layer


def _hook(model: Any, seed: int) -> None:
    model.first.register_forward_hook(lambda module, args, output: output + seed)


def _unhook(model: Any, seed: int) -> None:
    model.first._forward_hooks.clear()


def _set(**values: Any) -> Event:
    def event(model: Any, seed: int) -> None:
        for name, value in values.items():
            setattr(model, name, value)

    return event


def _of(change: Callable[[Any, int], object]) -> Event:
    def event(model: Any, seed: int) -> None:
        change(model, seed)

    return event


EVENTS: dict[str, Event] = {
    "in-place update": _in_place,
    "data": _data,
    "parameter": _parameter,
    "load_state_dict": _load,
    "load_state_dict(assign=True)": _assign,
    "submodule": _submodule,
    "hook": _hook,
    "no hook": _unhook,
    "train": _of(lambda model, seed: model.train()),
    "eval": _of(lambda model, seed: model.eval()),
    "part in training": _of(lambda model, seed: model.drop.train()),
    "scale": _of(lambda model, seed: setattr(model, "scale", float(seed % 3))),
    "scale, an int": _set(scale=2),
    "scale back": _set(scale=2.0),
    "list grows": _of(lambda model, seed: model.powers.append(3.0)),
    "list item": _of(lambda model, seed: model.powers.__setitem__(0, float(seed))),
    "buffer in place": _of(lambda model, seed: model.shift.add_(seed)),
    "buffer": _of(lambda model, seed: setattr(model, "shift", _numbers(seed, 4))),
    "buffer of one number": _of(
        lambda model, seed: setattr(model, "factor", torch.ones((), device="cuda"))
    ),
    "its value": _of(lambda model, seed: model.factor.fill_(seed)),
    "dropout's rate": _of(lambda model, seed: setattr(model.drop, "p", (seed % 10) / 10)),
    "momentum": _of(lambda model, seed: setattr(model.norm, "momentum", 0.5)),
    "shared weight apart": _of(
        lambda model, seed: setattr(model.third, "weight", nn.Parameter(_numbers(seed, 4, 4)))
    ),
    "double and back": _of(lambda model, seed: model.double().float()),
    "frozen": _of(lambda model, seed: model.requires_grad_(False)),
    "not frozen": _of(lambda model, seed: model.requires_grad_(True)),
}
CALLS: dict[str, Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "new values": lambda seed: ((_numbers(seed, 3, 4),), {}),
    "more rows": lambda seed: ((_numbers(seed, 5, 4),), {}),
    "other strides": lambda seed: ((_numbers(seed, 4, 3).t(),), {}),
    "a constant": lambda seed: ((_numbers(seed, 3, 4),), {"twice": True}),
}
MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "gradients": torch.enable_grad,
    "autocast": lambda: torch.autocast("cuda", torch.bfloat16),
}
moves = st.one_of(
    st.tuples(st.just("event"), st.sampled_from(sorted(EVENTS)), st.integers(1, 50)),
    st.tuples(st.sampled_from(sorted(MODES)), st.sampled_from(sorted(CALLS)), st.integers(1, 50)),
    st.tuples(st.just("no_grad"), st.just("new values"), st.integers(1, 50)),
    st.tuples(st.just("copy"), st.just(""), st.just(0)),
)


# Few examples of many moves: what an example costs is its capture.
@settings(max_examples=6)
@given(
    moves=st.lists(moves, min_size=8, max_size=28), training=st.booleans(), graphs=st.integers(1, 2)
)
def test_any_order_of_events_and_calls(moves: Any, training: bool, graphs: int) -> None:
    with EmulatedDevice():
        model = on_device(Subject()).train(training)
        twin = copy.deepcopy(model)
        fast = graphdoctor.capture(model, rand(3, 4), mode="inference", max_graphs=graphs)
        assert fast.plan.how == "whole"
        _run(fast, model, twin, moves)


@settings(max_examples=4)
@given(moves=st.lists(moves, min_size=6, max_size=18))
def test_any_order_with_graphs_for_both_passes(moves: Any) -> None:
    with EmulatedDevice():
        model = on_device(Subject()).train()
        twin = copy.deepcopy(model)
        fast = graphdoctor.capture(model, rand(3, 4), mode="training")
        assert fast.plan.how == "whole"
        _run(fast, model, twin, moves)


def _run(fast: Any, model: Any, twin: Any, moves: list[tuple[str, str, int]]) -> None:
    for what, name, seed in moves:
        if what == "event":
            for each in (model, twin):
                EVENTS[name](each, seed)
        elif what == "copy":
            assert type(copy.deepcopy(fast)) is Subject
        else:
            _compare(fast, twin, (what, name, seed))
        _compare_state(model, twin)


def _compare(fast: Any, twin: Any, how: tuple[str, str, int]) -> None:
    mode, call, seed = how
    answers = []
    for each in (fast, twin):
        args, kwargs = CALLS[call](seed)
        torch.manual_seed(seed)
        with MODES[mode]():
            answer = each(*args, **kwargs)
            if mode == "gradients" and any(t.requires_grad for t in answer.values()):
                sum(t.sum() for t in answer.values()).backward()
        answers.append(answer)
    assert list(answers[0]) == list(answers[1])
    for one, other in zip(*(each.values() for each in answers), strict=True):
        assert one.requires_grad == other.requires_grad and one.stride() == other.stride()
        _assert_same(one, other)


def _compare_state(model: nn.Module, twin: nn.Module) -> None:
    for (name, one), (_, other) in zip(
        model.state_dict().items(), twin.state_dict().items(), strict=True
    ):
        _assert_same(one, other, name)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            _assert_same(one.grad, other.grad)


def _assert_same(one: torch.Tensor, other: torch.Tensor, name: str | None = None) -> None:
    """One operator where they are; assert_close, which takes thirty, where a NaN may be in them."""
    is_same = one.device == other.device and one.dtype == other.dtype and torch.equal(one, other)
    if not is_same:
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=name)


@settings(max_examples=4)
@given(
    changes=st.lists(
        st.sampled_from(
            ["call", "large", "rows", "weight", "data", "train", "eval", "hook", "head"]
        ),
        min_size=2,
        max_size=8,
    )
)
def test_any_order_with_graphs_of_modules(changes: list[str]) -> None:
    events: dict[str, Callable[[Any], object]] = {
        "weight": lambda model: model.body[0].load_state_dict(
            {"weight": _numbers(1, 6, 6), "bias": _numbers(2, 6)}
        ),
        "data": lambda model: setattr(model.body[2].weight, "data", _numbers(3, 6, 6)),
        "train": lambda model: model.train(),
        "eval": lambda model: model.eval(),
        "hook": lambda model: model.body[4].register_forward_hook(lambda m, i, o: o * 2),
        "head": lambda model: setattr(model.head, "weight", nn.Parameter(_numbers(4, 2, 6))),
    }
    with EmulatedDevice():
        model = on_device(Branching())
        twin = copy.deepcopy(model)
        fast = graphdoctor.capture(model, rand(5, 6))
        assert fast.plan.how == "modules"
        for number, change in enumerate(changes):
            if change in events:
                events[change](model), events[change](twin)
            given = _numbers(number, 3 if change == "rows" else 5, 6)
            given = given * 1e6 if change == "large" else given
            with torch.no_grad():
                assert torch.equal(fast(given), twin(given))


def test_calls_without_events_are_replayed() -> None:
    """The properties above hold of a capture that replays, and not of one that never does."""
    with EmulatedDevice():
        fast = graphdoctor.capture(on_device(Subject()), rand(3, 4))
        with torch.no_grad():
            for seed in range(4):
                fast(_numbers(seed, 3, 4))
        assert replayed(fast) == 4


# tests/contract/test_guards.py changes the others alone.
ALONE = (
    "load_state_dict", "load_state_dict(assign=True)", "no hook", "scale, an int", "list grows", "buffer in place",
    "buffer of one number", "its value", "dropout's rate", "momentum", "shared weight apart", "frozen", "not frozen",
)  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_each_event_alone(name: str) -> None:
    with EmulatedDevice():
        model = on_device(Subject())
        twin = copy.deepcopy(model)
        fast = graphdoctor.capture(model, rand(3, 4))
        _run(fast, model, twin, [("no_grad", "new values", 1), ("event", name, 5)])
        _run(fast, model, twin, [("no_grad", "new values", seed) for seed in (2, 3)])
