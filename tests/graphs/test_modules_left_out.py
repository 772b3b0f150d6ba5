"""A module that cannot be graphed is left out with the reason, and all else stays as it was."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.graphs.modules import graph_modules
from graphdoctor.target.state.snapshot import named_state, snapshot
from tests.support.graphed_twins import (
    Side,
    Twice,
    data,
    linear,
    network,
    total,
    train,
    twins,
)
from tests.support.graphed_twins import emulated as emulated


def left_out(module: nn.Module, *args: Any, **kwargs: Any) -> dict[str, str]:
    """Why a module, called so and trained, was left out, and which of its children were."""
    module.cuda()

    def run() -> None:
        total(module(*args, **kwargs)).backward()

    made = graph_modules({"": module}, run, restore=snapshot({"m": module}).restore)
    made.release()
    return made.left_out


def test_hooks_of_the_module_itself_run() -> None:
    seen: list[str] = []

    def hooked() -> nn.Module:
        model = linear()
        model.register_forward_pre_hook(lambda *_: seen.append("before"))
        model.register_forward_hook(lambda _, args, output: output * 2)
        model.register_full_backward_hook(lambda *_: seen.append("backward"))
        return model

    with twins(hooked) as pair:
        seen.clear()
        pair.both(train)
        assert seen == ["before", "backward"] * 2
        assert pair.made.replays == 1


def test_a_module_with_a_hook_inside_is_left_out_and_its_children_are_not() -> None:
    seen: list[int] = []

    def hooked() -> nn.Module:
        model = linear()
        model[1].register_forward_hook(lambda *_: seen.append(1))
        return model

    with twins(hooked) as pair:
        assert pair.made.left_out == {
            "": "the Tanh inside it has a hook, which a replay would not run"
        }
        assert pair.made.paths == ("0", "1", "2")
        seen.clear()
        pair.both(train)
        assert seen == [1, 1]
        assert pair.made.replays == 3


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = linear(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return self.other(y) if y.sum().item() > 0 else y


def test_a_refused_module_is_left_out_with_its_cause_and_its_children_are_graphed() -> None:
    with twins(Reading) as pair:
        assert "the host waited for the device" in pair.made.left_out[""]
        assert "test_modules_left_out.py:" in pair.made.left_out[""]
        assert "layer" in pair.made.paths
        for step in range(3):
            pair.both(lambda side, step=step: train(side, step))
        assert pair.made.replays >= 3


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, how: str = "count") -> Any:
        if how == "write":
            x.add_(1)
        y = self.layer(x)
        if how == "count":
            self.calls += 1
        elif how == "keep":
            self.last = y.detach()
        elif how == "pass":
            return y, x
        elif how == "host":
            return y.cpu()
        elif how == "object":
            return y, object()
        return y


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("count", "its forward changes calls, which a replay would not"),
        ("keep", "its forward puts another tensor into last, as a replay would not"),
        ("write", "it writes into its input, and a graph would write into a copy"),
        ("pass", "it returns memory of its input or state, of which a graph has a copy"),
        ("host", "it returns a tensor on the CPU"),
        ("object", "it returns a object, whose content a graph cannot make"),
    ],
)
def test_a_forward_with_other_effects_is_left_out(how: str, reason: str) -> None:
    assert left_out(Counting(), data(), how)[""] == reason


def test_arguments_that_cannot_be_watched_leave_a_module_out() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, other: Any) -> torch.Tensor:
            return x * 2

    x = data().requires_grad_()
    assert left_out(Model(), x, object())[""] == (
        "an input is a object, whose contents may change without being noticed"
    )
    assert left_out(Model(), x, torch.ones(3))[""] == (
        "an argument is a tensor on the CPU, whose values a graph would freeze"
    )


class DistributedDataParallel(nn.Module):
    """Named like torch's own, which needs a process group."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


def test_wrappers_are_named() -> None:
    assert left_out(DistributedDataParallel(), data())[""] == (
        "DistributedDataParallel cannot be graphed in parts: "
        "it synchronizes gradients while the backward pass runs"
    )


def test_a_compiled_module_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    # What compile() sets; the emulated device lets nothing be compiled.
    model[0]._compiled_call_impl = model[0]._call_impl
    assert left_out(model, data())[""] == "Linear is compiled by its compile() already"


def test_a_graphed_module_is_named() -> None:
    model = nn.Linear(8, 8).cuda()
    torch.cuda.make_graphed_callables(model, (data(),))
    reason = left_out(model, data())[""]
    assert reason == "Linear is graphed by make_graphed_callables already"


def test_unusable_tensors_are_named() -> None:
    with_buffer = nn.Linear(8, 8)
    with_buffer.register_buffer("kept", torch.ones(8).cuda().requires_grad_())
    assert left_out(with_buffer, data())[""] == (
        "its buffer kept requires grad, and only parameters may"
    )
    hooked = nn.Linear(8, 8)
    hooked.weight.register_hook(lambda gradient: gradient)
    assert "gradient hook" in left_out(hooked, data())[""]


def test_gradients_of_gradients_leave_a_module_out() -> None:
    model = linear().cuda()

    def run() -> None:
        x = data().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()

    made = graph_modules({"": model}, run, restore=snapshot({"m": model}).restore)
    assert made.left_out[""] == "its gradients are differentiated again"


def test_a_module_that_is_not_called_is_left_out() -> None:
    model = Twice().cuda()
    unused = nn.Linear(2, 2).cuda()
    run = lambda: total(model(data())).backward()  # noqa: E731
    made = graph_modules({"unused": unused}, run, restore=lambda: None)
    assert made.left_out == {"unused": "it was not called"}


def test_graphing_changes_no_state() -> None:
    torch.manual_seed(0)
    side = Side(network().cuda())
    side.train(data())
    roots = vars(side)
    before = {path: t.clone() for path, t in named_state(roots)[0].items()}
    values = named_state(roots)[1]
    generator = torch.get_rng_state()
    made = graph_modules(
        {"": side.model}, lambda: side.train(data()), restore=snapshot(roots).restore
    )
    assert made.paths == ("",)
    tensors, values_now = named_state(roots)
    assert values == values_now and list(tensors) == list(before)
    assert all(torch.equal(t, before[path]) for path, t in tensors.items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_the_modules_are_put_back_as_they_were() -> None:
    with twins(linear) as pair:
        model = pair.graphed.model
        assert "forward" in model.__dict__
        pair.made.uninstall()
        assert "forward" not in model.__dict__
        pair.made.install()
        train(pair.graphed)
        assert pair.made.replays == 1
    assert "forward" not in model.__dict__
    assert pair.made.paths == ()


def test_a_forward_of_the_users_own_is_put_back_and_may_be_replaced() -> None:
    def own(x: torch.Tensor) -> torch.Tensor:
        return nn.Sequential.forward(model, x) * 3

    model = linear().cuda()
    model.forward = own  # type: ignore[method-assign]
    x = data()
    wanted = total(model(x))
    restore = snapshot({"m": model}).restore
    made = graph_modules({"": model}, lambda: total(model(x)).backward(), restore=restore)
    with made.installed():
        assert torch.equal(total(model(x)), wanted)
        assert made.replays == 1
    assert model.__dict__["forward"] is own
    model.forward = lambda x: own(x) + 1  # type: ignore[method-assign]
    with made.installed():
        assert not torch.equal(total(model(x)), wanted)
        assert made.replays == 1


@lru_cache(maxsize=1)
def positions(dtype: torch.dtype) -> torch.Tensor:
    """As the position embeddings of MaskFormer: another dtype drops what a graph reads."""
    return torch.arange(8.0, device="cuda").to(dtype)


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return self.inner(y + positions(y.dtype))


@pytest.mark.parametrize("training", [False, True])
def test_memory_that_only_a_cache_holds_is_read_by_no_graph(training: bool) -> None:
    """A call under autocast replaces the cache's entry, and frees what the graph would read."""
    positions.cache_clear()

    def run(side: Side, seed: int = 0) -> Any:
        return train(side, seed) if training else side.look(data(seed=seed))

    def cast(side: Side) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return run(side, 1)

    with twins(Cached, [run]) as pair:
        assert "neither an argument nor reached from the module" in pair.made.left_out[""]
        assert set(pair.made.paths) == {"layer", "inner"}
        for step in (run, cast, run):
            pair.both(step)
        assert pair.made.replays == 4
