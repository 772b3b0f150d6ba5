"""Whatever a step does to what it reaches, a snapshot puts back: same objects, same bytes."""

from __future__ import annotations

import contextlib
import copy
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphdoctor.target.state.snapshot import named_tensors, named_values, snapshot
from graphdoctor.target.state.walk import Walk
from tests.support.opaque import Opaque

torch.set_num_threads(1)

COUNTER = 0
HISTORY: list[object] = []


class Slotted:
    __slots__ = ("__hidden", "empty", "value")

    def __init__(self) -> None:
        self.value = torch.ones(2)
        self.__hidden = 3

    def grow(self) -> None:
        self.__hidden += 1
        self.empty = "set"
        self.value.add_(1)


class Prickly:
    """Raises at whatever is asked of it through the front door."""

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"no {name}")

    @property
    def shape(self) -> object:
        raise RuntimeError("do not look")


@dataclass(frozen=True)
class Frozen:
    weights: list[float]


class Net(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.tied = self.layers[0]
        self.register_buffer("window", torch.arange(6.0).view(2, 3))
        self.row = self.window[0]
        self.steps = 0
        self.cache: dict[str, object] = {"a": 1, "b": torch.zeros(2)}
        self.log: list[object] = [1, [2, 3]]
        self.recent: deque[int] = deque([1, 2], maxlen=2)
        self.seen = {1, 2}
        self.slotted = Slotted()
        self.prickly = Prickly()
        self.frozen = Frozen([1.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + self.window.sum()


@dataclass
class World:
    """A model in training, with what belongs to it."""

    net: Net
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler


def make_world() -> World:
    torch.manual_seed(7)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    return World(net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1))


def train(world: World) -> None:
    world.optimizer.zero_grad()
    world.net(torch.randn(4, 3)).sum().backward()
    world.optimizer.step()
    world.scheduler.step()


def rebind_data(world: World) -> None:
    world.net.layers[0].weight.data = torch.randn(5, 3, dtype=torch.float64).to(torch.float32)


def resize_storage(world: World) -> None:
    world.net.window.resize_(50, 50).fill_(1)


def shrink_storage(world: World) -> None:
    world.net.window.untyped_storage().resize_(0)


def delete_attributes(world: World) -> None:
    del world.net.steps, world.net.window
    del world.net.layers[1]


def replace_parameter(world: World) -> None:
    world.net.layers[0].bias = nn.Parameter(torch.ones(3))


def change_containers(world: World) -> None:
    net = world.net
    net.cache.pop("a")
    net.cache["c"] = net.cache
    net.log[1].append(4)
    net.log.append(torch.ones(3))
    net.recent.append(9)
    net.seen.add(5)
    net.frozen.weights[0] = 9.0


def reorder_dict(world: World) -> None:
    world.net.cache["a"] = world.net.cache.pop("a")


def use_slots(world: World) -> None:
    world.net.slotted.grow()
    vars(world.net.prickly)["count"] = 5


def use_class_and_globals(world: World) -> None:
    global COUNTER
    COUNTER += 1
    HISTORY.append(world)
    Net.calls += 1
    Net.fresh_attribute = 1


def freeze(world: World) -> None:
    world.net.eval().requires_grad_(False)
    world.net.layers[0].weight.grad = torch.ones(3, 3)


def write_in_graph(world: World) -> None:
    world.net.window.mul_(world.net.layers[0].weight.sum())


def double(world: World) -> None:
    world.net.double()


def add_hook(world: World) -> None:
    world.net.register_forward_hook(lambda *_: None)
    world.net.layers[0].weight.register_hook(lambda grad: grad)


def draw(world: World) -> None:
    random.random(), numpy.random.rand(), torch.rand(1)


def flip_switches(world: World) -> None:
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    products = torch.backends.cuda.matmul
    products.allow_fp16_reduced_precision_reduction = (
        not products.allow_fp16_reduced_precision_reduction
    )


def fail(world: World) -> None:
    world.net.steps += 1
    raise ZeroDivisionError


DEEDS: list[Callable[[World], None]] = [
    train,
    rebind_data,
    resize_storage,
    shrink_storage,
    delete_attributes,
    replace_parameter,
    change_containers,
    reorder_dict,
    use_slots,
    use_class_and_globals,
    freeze,
    write_in_graph,
    double,
    add_hook,
    draw,
    flip_switches,
    fail,
]

# Whatever follows a freed storage would read and write freed memory.
SEQUENCED = [deed for deed in DEEDS if deed is not shrink_storage]


def roots_of_world(world: World) -> dict[str, object]:
    return {"net": world.net, "optimizer": world.optimizer, "scheduler": world.scheduler,
            "deed": use_class_and_globals}  # fmt: skip


def bytes_of(tensor: torch.Tensor) -> bytes:
    # Of a copy: a tensor that NumPy has seen can no longer be resized.
    return tensor.detach().clone().numpy().tobytes()


def grad_of(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf else None


def photograph(world: World) -> dict[str, object]:
    """All that can be seen of a world, values and identities, made without the code under test."""
    seen: dict[str, object] = {}
    for name, tensor in [*world.net.named_parameters(), *world.net.named_buffers()]:
        seen[f"{name} is"] = (id(tensor), tensor.requires_grad, tensor.is_leaf, tensor.dtype)
        seen[f"{name} at"] = (tensor.untyped_storage()._cdata, tensor.stride(), tensor.shape)
        nbytes = tensor.untyped_storage().nbytes()
        seen[f"{name} has"] = bytes_of(tensor) if nbytes else "no memory"
        seen[f"{name} grad"] = None if grad_of(tensor) is None else bytes_of(tensor.grad)
        seen[f"{name} version"] = tensor._version
        seen[f"{name} hooks"] = tensor._backward_hooks
    seen["modules"] = [(n, id(m), m.training, list(vars(m))) for n, m in world.net.named_modules()]
    seen["row"] = (id(world.net.row), world.net.row.tolist())
    seen["python"] = repr([world.net.steps, world.net.cache, world.net.log, world.net.recent])
    seen["more"] = repr([world.net.seen, world.net.frozen, vars(world.net.prickly)])
    slotted = world.net.slotted
    hidden = getattr(slotted, "_Slotted__hidden", None)
    seen["slots"] = (slotted.value.tolist(), hidden, hasattr(slotted, "empty"))
    seen["optimizer"] = repr(world.optimizer.state_dict())
    seen["scheduler"] = repr(world.scheduler.state_dict())
    seen["hooks"] = len(world.net._forward_hooks)
    seen["globals"] = (COUNTER, len(HISTORY), Net.calls, hasattr(Net, "fresh_attribute"))
    seen["random"] = (
        random.getstate(),
        numpy.random.get_state()[1].tobytes(),
        torch.get_rng_state().tolist(),
    )
    seen["switches"] = (
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.backends.cudnn.benchmark,
        torch.get_deterministic_debug_mode(),
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    )
    return seen


def run(deed: Callable[[World], None], world: World) -> None:
    # A step may fail midway; what it did until then must be undone all the same.
    with contextlib.suppress(Exception):
        deed(world)


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
def test_each_deed_is_seen_and_undone(deed: Callable[[World], None]) -> None:
    world = make_world()
    train(world)
    before = photograph(world)
    saved = snapshot(roots_of_world(world))
    assert photograph(world) == before
    run(deed, world)
    try:
        during: object = photograph(world)
    except Exception:
        during = "cannot even be looked at"
    saved.restore()
    assert during != before
    assert photograph(world) == before


@settings(max_examples=50)
@given(st.lists(st.sampled_from(SEQUENCED), min_size=1, max_size=6), st.booleans())
def test_any_sequence_of_deeds_is_undone(deeds: list[Callable[[World], None]], warm: bool) -> None:
    world = make_world()
    if warm:
        train(world)
    before = photograph(world)
    saved = snapshot(roots_of_world(world))
    for deed in deeds:
        run(deed, world)
    saved.restore()
    assert photograph(world) == before
    run(deeds[0], world)  # a snapshot serves any number of times
    saved.restore()
    assert photograph(world) == before


def test_a_restored_model_trains_as_it_would_have() -> None:
    world, twin = make_world(), make_world()
    saved = snapshot(roots_of_world(world))
    train(world)
    saved.restore()
    for one in (world, twin):
        torch.manual_seed(1)
        train(one)
    for ours, theirs in zip(world.net.parameters(), twin.net.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_wrapper_without_memory_of_its_own_is_put_back_by_what_it_wraps() -> None:
    opaque = Opaque(torch.ones(2))
    before = snapshot({"opaque": opaque})
    opaque.inner.zero_()
    before.restore()
    assert opaque.inner.tolist() == [1.0, 1.0]


def test_tensors_are_named_as_people_name_them() -> None:
    world = make_world()
    train(world)
    names = named_tensors({"optimizer": world.optimizer, "net": world.net})
    assert names["net.layers.0.weight"] is world.net.layers[0].weight
    assert "net.layers.0.weight.grad" in names and "net.window" in names
    assert "optimizer.state[net.layers.0.weight].exp_avg" in names
    assert "net.layers.1.running_mean" in names and "net.cache.b" in names
    assert not any(name.startswith("net.tied") for name in names)
    alone = named_tensors({"optimizer": world.optimizer})
    assert "optimizer.param_groups[0].params[0]" in alone
    assert "optimizer.state[optimizer.param_groups[0].params[0]].exp_avg" in alone


def test_values_show_what_a_step_changes() -> None:
    world = make_world()
    roots = {"net": world.net, "optimizer": world.optimizer}
    before = named_values(roots)
    world.net.steps += 1
    world.net.log.append(5)
    world.optimizer.param_groups[0]["lr"] = 0.5
    after = named_values(roots)
    changed = {key for key in after if before.get(key) != after[key]}
    assert changed == {"net.steps", "len(net.log)", "net.log[2]", "optimizer.param_groups[0].lr"}
    assert not any("_forward_hooks" in key for key in after)


def test_a_copy_of_a_state_dict_agrees_after_training() -> None:
    world = make_world()
    before = copy.deepcopy(world.net.state_dict())
    saved = snapshot(roots_of_world(world))
    for _ in range(3):
        train(world)
    saved.restore()
    assert all(torch.equal(before[name], now) for name, now in world.net.state_dict().items())
    assert all(parameter.grad is None for parameter in world.net.parameters())


@pytest.mark.parametrize(("module", "is_state"), [(__name__, True), ("numba.core.registry", False)])
def test_what_a_compiler_holds_of_its_functions_is_no_state(module: str, is_state: bool) -> None:
    """numba's dispatchers lead to all of numba, in which counters run."""

    class Dispatcher:
        __module__ = module

        def __init__(self) -> None:
            self.calls = count()

    dispatcher = Dispatcher()
    visited = [visit.value for visit in Walk({"jit": dispatcher})]
    assert (dispatcher.calls in visited) == is_state
