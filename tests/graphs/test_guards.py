"""The guard of what a forward reads from the host: it is quick, and says `same` only where it is."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.guards import Guard, Modes
from graphdoctor.target.state.globals import PRECISIONS, SavedGlobals, read_precision, set_precision
from tests.support.emulated import device as device
from tests.support.torch_versions import TELLS_SAVED_TENSOR_HOOKS, WHY_NO_HOOKS


class _Parameter(nn.Parameter):
    pass


CHANGES: dict[str, Callable[[Any], object]] = {
    "training": lambda model: model[3].train(),
    "attribute": lambda model: setattr(model[70], "in_features", 9),
    "parameter": lambda model: setattr(model[5], "bias", nn.Parameter(torch.zeros(1))),
    "no parameter": lambda model: setattr(model[5], "bias", None),
    "data": lambda model: setattr(model[98].weight, "data", torch.zeros(1, 1)),
    "a tensor's class": lambda model: setattr(model[98].weight, "__class__", _Parameter),
    "buffer": lambda model: model[0].register_buffer("more", torch.zeros(1)),
    "hook": lambda model: model[9].register_forward_hook(lambda *a: None),
    "pre-hook": lambda model: model[9].register_forward_pre_hook(lambda *a: None),
    "submodule": lambda model: setattr(model, "4", nn.Linear(1, 1)),
    "new submodule": lambda model: model[4].add_module("inner", nn.ReLU()),
    "past setattr": lambda model: model[4].__dict__.update(training=True),
    "type": lambda model: setattr(model[4], "out_features", True),
    "no attribute": lambda model: delattr(model[4], "out_features"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_large_model_that_changed_is_found_out(name: str) -> None:
    __import__("torch._dynamo.guards")
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(99)]).eval()
    watch = Guard({"model": model})
    assert watch.is_same()
    CHANGES[name](model)
    for _ in range(2):
        assert not watch.is_same()


@dataclass
class Settings:
    power: float
    sizes: list[int] = field(default_factory=lambda: [2, 2])


class Slotted:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 2.0


class Deep(nn.Module):
    """What a forward may read, at every depth at which it may lie."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.settings = Settings(1.0)
        self.nested = {"a": [{"b": 1}]}
        self.numbers = [1, 2]
        self.pair = (1, 2)
        self.slotted = Slotted()
        self.counts = Counter(a=1)
        self.ends = deque([1])
        self.kinds = {1}
        self.noise = torch.zeros(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = self.settings, self.nested, self.numbers, self.pair, self.slotted, self.counts
        out: torch.Tensor = self.layer(x) * len((held, self.ends, self.kinds, self.noise))
        return out


DEEP_CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "an object": (lambda m: setattr(m.settings, "power", 2.0), "settings.power"),
    "a list in an object": (lambda m: m.settings.sizes.append(3), "settings.sizes"),
    "deep in containers": (lambda m: m.nested["a"][0].update(b=2), "nested.a[0].b"),
    "a slot": (lambda m: setattr(m.slotted, "factor", 3.0), "slotted.factor"),
    "a number's type in a list": (lambda m: m.numbers.__setitem__(0, 1.0), "numbers"),
    "a number's type in a tuple": (lambda m: setattr(m, "pair", (1.0, 2)), "pair"),
    "a count": (lambda m: m.counts.update(a=1), "counts.a"),
    "an end": (lambda m: m.ends.append(2), "ends"),
    "a set": (lambda m: m.kinds.add(2), "kinds"),
    "a tensor on the CPU": (lambda m: m.noise.fill_(1), "values of noise"),
    "a tensor": (lambda m: setattr(m, "noise", torch.zeros(2)), "noise"),
    "a tensor's attribute": (lambda m: setattr(m.layer.bias, "scale", 2.0), "layer.bias.scale"),
    "an attribute that is gone": (lambda m: delattr(m, "pair"), "pair"),
    "an equal object": (lambda m: setattr(m, "settings", Settings(1.0)), "settings"),
    "a hook inside": (lambda m: m.layer.register_forward_hook(print), "hook"),
    "memory": (lambda m: setattr(m.layer.weight, "data", torch.zeros(3, 3)), "layer.weight"),
}


@pytest.fixture
def deep() -> Deep:
    deep = Deep()
    deep.layer.bias.scale = 1.0  # type: ignore[attr-defined]
    return deep


@pytest.mark.parametrize("name", DEEP_CHANGES)
@pytest.mark.parametrize("stands_in", [False, True])
def test_what_lies_deep_is_watched_in_a_graphed_module_too(
    deep: Deep, name: str, stands_in: bool
) -> None:
    guard = Guard({"": deep}, around=deep if stands_in else None)
    assert guard.is_same() and guard.gradients_are_same() and not guard.difference(grad=True)
    change, what = DEEP_CHANGES[name]
    change(deep)
    for _ in range(2):
        assert not guard.is_same() and what in guard.difference()


def test_wanted_gradients_count_where_gradients_are_on(deep: Deep) -> None:
    guard = Guard({"model": deep})
    deep.layer.weight.requires_grad_(False)
    assert guard.is_same() and not guard.gradients_are_same()
    assert guard.difference(grad=True) == (
        "requires_grad of model.layer.weight changed from True to False"
    )


@pytest.mark.parametrize("place", ["numbers", "nested"])
def test_a_container_that_took_an_equal_ones_place_is_watched_from_then_on(
    deep: Deep, place: str
) -> None:
    """It compared as equal, its dictionary's version was noted, and it was never looked at again."""
    deep.nested = {"a": 1}  # type: ignore[dict-item]
    guard = Guard({"model": deep})
    held = getattr(deep, place)
    setattr(deep, place, held.copy())
    assert not guard.is_same() and guard.difference() == "" and guard.is_same()
    held.clear()
    assert guard.is_same()
    now: Any = getattr(deep, place)
    now.update(a=2) if place == "nested" else now.append(3)
    assert not guard.is_same() and place in guard.difference()


def test_an_equal_container_hides_no_other_change(deep: Deep) -> None:
    guard = Guard({"model": deep})
    deep.numbers, deep.layer.in_features = list(deep.numbers), 5
    for _ in range(3):
        assert not guard.is_same() and "in_features" in guard.difference()


def test_the_place_of_the_graph_and_hooks_around_it_are_not_watched(deep: Deep) -> None:
    guard = Guard({"": deep}, around=deep)
    deep.forward = deep.layer.forward  # type: ignore[method-assign, assignment]
    deep.register_forward_hook(lambda *_: None)
    assert guard.is_same()
    deep.more = 1  # type: ignore[assignment]
    assert not guard.is_same() and guard.difference() == "more changed from nothing to 1"
    del deep.more, deep.forward
    assert guard.is_same()
    assert not Guard({"": deep}).difference()


def test_the_objects_that_a_forward_of_the_user_s_own_holds_are_not_entered(deep: Deep) -> None:
    """Functions and their variables are frozen at capture; modules among these are watched."""
    factor = 2.0
    deep.forward = lambda x: other(x) * factor  # type: ignore[method-assign]
    other = Deep()
    guard = Guard({"model": deep})
    factor = 3.0
    assert guard.is_same()
    other.settings.power = 2.0
    assert not guard.is_same() and "other.settings.power" in guard.difference()


_EPOCH = 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda deep, settings: setattr(deep.settings, "power", 2.0), "model.settings.power"),
        (lambda deep, settings: setattr(settings, "power", 2.0), "settings.power"),
        (lambda deep, settings: settings.sizes.append(1), "settings.sizes"),
        (lambda deep, settings: globals().update(_EPOCH=1), "_EPOCH changed from 0 to 1"),
    ],
)
def test_the_variables_of_a_step_are_watched(
    deep: Deep, change: Callable[[Deep, Settings], object], named: str
) -> None:
    model, settings = deep, Settings(1.0)

    def step(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(model(x)) * settings.power * len(settings.sizes) * _EPOCH

    guard, before = Guard({"step": step}), dict(globals())
    assert guard.is_same() and guard.difference() == ""
    try:
        change(deep, settings)
        for _ in range(2):
            assert not guard.is_same() and named in guard.difference()
    finally:
        globals().update(before)


def test_of_an_object_only_the_attributes_that_a_step_reads_are_watched() -> None:
    settings, passed_on = Settings(1.0), Settings(1.0)

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * settings.power * len(vars(passed_on))

    guard = Guard({"step": step})
    settings.sizes.append(1)
    assert guard.is_same()
    settings.power = 2.0
    assert not guard.is_same() and "settings.power" in guard.difference()
    settings.power = 1.0
    assert not guard.difference()
    passed_on.sizes.append(1)
    assert "passed_on.sizes" in guard.difference()


class Environment:
    def __init__(self) -> None:
        self.actions, self.steps = 2, 0


class Policy(nn.Module):
    """As in cleanrl's C51: only the constructor reads the environment."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.env = env
        self.layer = nn.Linear(3, self.env.actions)
        self.rewards: list[float] = []

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


def _moved(env: Environment, model: Any) -> bool:
    """Whether a change of an environment is found, in a step and in a forward; other changes are."""
    in_step, in_forward = Guard({"step": lambda x: model(x)}), Guard({"": model}, around=model)
    env.steps += 1
    differences = {guard.difference() for guard in (in_step, in_forward)}
    assert differences <= {
        "",
        "model.env.steps changed from 0 to 1",
        "env.steps changed from 0 to 1",
    }
    assert len({in_step.is_same(), in_forward.is_same()}) == 1
    moved = not in_step.is_same()
    if not moved:
        model.layer.weight.data = torch.zeros(2, 3)
        assert not in_step.is_same() and not in_forward.is_same()
    return moved


class _Reads(Policy):
    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.env.steps


class _ReadsByName(Policy):
    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self.scale = "env.steps"

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * attrgetter(self.scale or "layer")(self)


class _ReadsByParts(Policy):
    def forward(self, x: torch.Tensor) -> Any:
        return [self.layer(x) * getattr(self, f"{kind}v").steps for kind in ("e",)]


class _ReadsByUnknownName(Policy):
    def forward(self, x: torch.Tensor) -> Any:
        return [getattr(self, each) for each in dir(self)]


class _ReadsAll(Policy):
    def forward(self, x: torch.Tensor) -> Any:
        return list(vars(self).values())


class _ReadsInNested(Policy):
    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self.scale: Any = lambda: env.steps

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.scale()


class _ReadsInProperty(Policy):
    @cached_property
    def scale(self) -> int:
        return _steps_of(self)


def _steps_of(model: Any) -> int:
    return int(model.env.steps)


class _ReadsInHelper(Policy):
    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * _steps_of(self)


class _ReadsInBase(_Reads):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x)


class _Logger:
    def note(self, model: Any) -> int:
        return int(model.env.steps)


class _ReadsPast(Policy):
    """The code of what an attribute holds counts once other code reads the attribute."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self.logger = _Logger()

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.logger.note(self)


READERS = (
    *(_Reads, _ReadsByName, _ReadsByParts, _ReadsByUnknownName, _ReadsAll, _ReadsInNested),
    *(_ReadsInProperty, _ReadsInHelper, _ReadsInBase, _ReadsPast),
)


def test_an_environment_that_only_a_constructor_reads_may_change() -> None:
    env = Environment()
    model = Policy(env)
    assert not _moved(env, model)
    guard = Guard({"": model})
    model.rewards.append(1.0)
    model.env = Environment()
    assert guard.is_same() and guard.difference() == ""
    model.extra = 1  # type: ignore[assignment]
    assert not guard.is_same()


@pytest.mark.parametrize("reader", READERS)
def test_an_environment_that_a_step_may_read_is_watched(reader: type[Policy]) -> None:
    env = Environment()
    assert _moved(env, reader(env))


def test_an_environment_that_a_step_or_its_helper_reads_is_watched() -> None:
    env = Environment()
    model = Policy(env)

    def helped(x: torch.Tensor) -> Any:
        return model(x) * _steps_of(model)

    def itself(x: torch.Tensor) -> Any:
        return model(x) * model.env.steps

    guards = [Guard({"step": helped}), Guard({"step": itself})]
    env.steps += 1
    for guard in guards:
        assert not guard.is_same() and "model.env.steps changed from 0" in guard.difference()


SCALE = 1.0


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def test_a_float_that_a_helper_of_a_step_reads_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return _scaled(x)

    guard = Guard({"step": step})
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert not guard.is_same() and "SCALE changed from 1.0" in guard.difference()


def test_memory_behind_an_attribute_that_nothing_reads_is_kept() -> None:
    env: Any = Environment()
    env.table = torch.zeros(3)
    assert any(tensor is env.table for tensor in Guard({"": Policy(env)}).tensors)


def test_what_only_generation_reads_is_frozen(deep: Deep) -> None:
    deep.generation_config = Settings(1.0)  # type: ignore[assignment]
    guard = Guard({"model": deep})
    deep.generation_config.power = 2.0  # type: ignore[union-attr]
    assert guard.is_same()
    deep.generation_config = Settings(1.0)  # type: ignore[assignment]
    assert guard.difference() == "" and guard.is_same()


def test_memory_that_only_a_function_leads_to_is_kept() -> None:
    table = torch.zeros(3)
    model = nn.Linear(3, 3)
    model.forward = lambda x: x + table  # type: ignore[method-assign, assignment]
    assert any(tensor is table for tensor in Guard({"": model}).tensors)


told_hooks = pytest.mark.xfail(not TELLS_SAVED_TENSOR_HOOKS, reason=WHY_NO_HOOKS, strict=True)


class TestModes:
    @pytest.mark.parametrize(
        ("within", "name"),
        [
            (lambda: torch.autocast("cuda", torch.bfloat16), "autocast"),
            (forward_ad.dual_level, "forward-mode gradients"),
            pytest.param(
                lambda: saved_tensors_hooks(lambda t: t, lambda t: t),
                "activation checkpointing",
                marks=told_hooks,
            ),
            (lambda: torch.device("meta"), "function modes"),
        ],
    )
    def test_a_mode_is_noticed(self, device: EmulatedDevice, within: Any, name: str) -> None:
        modes = Modes()
        with within():
            assert not modes.is_same() and name in modes.difference()
        assert modes.is_same() and modes.difference() == ""

    def test_precision_of_convolutions_and_sums(self, device: EmulatedDevice) -> None:
        modes = Modes()
        before = torch._C._get_cudnn_allow_tf32()
        torch._C._set_cudnn_allow_tf32(not before)
        try:
            assert not modes.is_same() and "TF32 in cudnn changed" in modes.difference()
        finally:
            torch._C._set_cudnn_allow_tf32(before)
        assert modes.is_same()

    @pytest.mark.skipif(not PRECISIONS, reason="torch 2.9 brought these switches")
    @pytest.mark.parametrize("op", ["matmul", "conv", "rnn"])
    def test_precisions_are_watched_where_the_old_switches_do_not_answer(
        self, device: EmulatedDevice, op: str
    ) -> None:
        saved = SavedGlobals()
        for each, precision in (("matmul", "tf32"), ("conv", "ieee"), ("rnn", "tf32")):
            set_precision(("cuda", each), precision)
        try:
            modes = Modes()
            assert modes.is_same() and modes.difference() == ""
            before = read_precision(("cuda", op))
            set_precision(("cuda", op), "tf32" if before == "ieee" else "ieee")
            assert not modes.is_same() and "changed from" in modes.difference()
            set_precision(("cuda", op), before)
            assert modes.is_same()
        finally:
            saved.restore()

    def test_autocast_may_be_left_to_the_signature(self, device: EmulatedDevice) -> None:
        modes = Modes(autocast=False)
        with torch.autocast("cuda", torch.bfloat16):
            assert modes.is_same()


def test_the_driver_is_asked_about_captures_only_on_streams_that_can_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, answer, asked = [0], [False], []

    def is_capturing() -> bool:
        asked.append(stream[0])
        return answer[0]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    raw = "_cuda_getCurrentRawStream"
    monkeypatch.setattr(torch._C, raw, lambda device: stream[0], raising=False)
    name = "_cuda_isCurrentStreamCapturing"
    monkeypatch.setattr(torch._C, name, is_capturing, raising=False)
    watch = Modes()
    asked.clear()
    assert watch.is_same() and not asked
    stream[0] = 7
    assert watch.is_same() and asked == [7]
    answer[0] = True
    assert not watch.is_same() and "a capture of the caller's" in watch.difference()
