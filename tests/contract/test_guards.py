"""Section 2 of the contract: whatever a captured model guards is changed, and no call returns a stale answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import assert_equal, rand, replayed
from tests.support.emulated import device as device


@dataclass
class Config:
    """As configuration objects of libraries are."""

    scale: float = 1.0
    activation: str = "gelu"
    layers_to_skip: list[int] = field(default_factory=list)
    rope: dict[str, float] = field(default_factory=lambda: {"factor": 1.0})


class Encoder(nn.Module):
    """A small encoder with a configuration, a table that is no buffer, and a mask as an optional argument."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.norm = nn.LayerNorm(4)
        self.register_buffer("positions", torch.arange(4.0))
        self.tables = {"bias": torch.ones(4, device="cuda")}
        self.window = (0, 4)

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.0
    ) -> dict[str, torch.Tensor]:
        x = x * self.config.rope["factor"] + self.positions
        for at, layer in enumerate(self.layers):
            if at not in self.config.layers_to_skip:
                x = layer(x)
        x = torch.tanh(x) if self.config.activation == "tanh" else nn.functional.gelu(x)
        x = self.norm(x) * self.config.scale * scale + self.tables["bias"]
        begin, end = self.window
        x = x[:, begin:end]
        return {"hidden": x if mask is None else x * mask[:, begin:end]}


class ConvNet(nn.Module):
    """Convolution, batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.layers = nn.ModuleList([nn.Conv1d(5, 5, 1)])
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(self.drop(self.norm(self.layers[0](x[None]))[0])) + x.sum()}


def _model(kind: type[nn.Module]) -> Any:
    torch.manual_seed(7)
    return kind().cuda().eval()


def _same(fast: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        found, expected = fast(*args, **kwargs), model(*args, **kwargs)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)


CHANGES: dict[str, Callable[[Any], object]] = {
    "a parameter": lambda m: (
        setattr(m.layers[0], "weight", nn.Parameter(m.norm.weight.new_ones(5, 5, 1)))
        if isinstance(m, ConvNet)
        else setattr(m.layers[0], "weight", nn.Parameter(rand(4, 4)))
    ),
    "a parameter's data": lambda m: setattr(m.norm.weight, "data", m.norm.weight * 3),
    "no bias": lambda m: setattr(m.layers[0], "bias", None),
    "a layer": lambda m: m.layers.__setitem__(0, nn.Identity()),
    "an attribute": lambda m: setattr(m.norm, "eps", 0.5),
    "a hook": lambda m: m.layers[0].register_forward_hook(lambda module, given, made: made * 2),
    "a pre-hook": lambda m: m.norm.register_forward_pre_hook(lambda module, given: (given[0] * 2,)),
    "its forward": lambda m: setattr(m.layers[0], "forward", lambda x: x * 2),
    "a parametrization": lambda m: nn.utils.parametrizations.weight_norm(m.layers[0]),
}
OF_ENCODER: dict[str, Callable[[Any], object]] = {
    "a buffer": lambda m: setattr(m, "positions", rand(4)),
    "a tensor in a container": lambda m: m.tables.update(bias=rand(4)),
    "memory of a tensor in a container": lambda m: setattr(m.tables["bias"], "data", rand(4)),
    "strides": lambda m: m.layers[0].weight.t_(),
    "a number of the configuration": lambda m: setattr(m.config, "scale", 2.0),
    "a string of the configuration": lambda m: setattr(m.config, "activation", "tanh"),
    "a list of the configuration": lambda m: m.config.layers_to_skip.append(1),
    "a dictionary of the configuration": lambda m: m.config.rope.update(factor=3.0),
    "another configuration": lambda m: setattr(m, "config", Config(scale=5.0)),
    "a tuple": lambda m: setattr(m, "window", (1, 3)),
    "a dtype": lambda m: m.double().float(),
}
OF_CONVNET: dict[str, Callable[[Any], object]] = {
    "training": lambda m: m.train(),
    "training of one": lambda m: m.norm.train(),
    "running statistics": lambda m: setattr(m.norm, "running_mean", rand(5)),
}
CASES = [
    *((kind, name, change) for kind in (Encoder, ConvNet) for name, change in CHANGES.items()),
    *((Encoder, name, change) for name, change in OF_ENCODER.items()),
    *((ConvNet, name, change) for name, change in OF_CONVNET.items()),
]


@pytest.mark.parametrize(
    ("kind", "change"),
    [(kind, change) for kind, _, change in CASES],
    ids=[f"{kind.__name__}, {name}" for kind, name, _ in CASES],
)
def test_a_change_of_the_model_is_eager(
    device: EmulatedDevice, kind: type[nn.Module], change: Callable[[Any], object]
) -> None:
    model = _model(kind)
    fast = graphdoctor.capture(model, rand(5, 4), mode="inference")
    _same(fast, model, rand(5, 4))
    assert replayed(fast) == 1
    with torch.no_grad():
        change(model)
    for _ in range(2):
        state = torch.cuda.get_rng_state()
        given = rand(5, 4)
        with torch.no_grad():
            start = torch.random.get_rng_state()
            found = fast(given)
            torch.random.set_rng_state(start)
            expected = model(given)
        torch.cuda.set_rng_state(state)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert replayed(fast) == 1 and sum(fast.fallbacks.values()) == 2


@pytest.mark.parametrize("kind", [Encoder, ConvNet])
def test_new_values_in_the_same_memory_are_replayed(
    device: EmulatedDevice, kind: type[nn.Module]
) -> None:
    model = _model(kind)
    fast = graphdoctor.capture(model, rand(5, 4))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with torch.no_grad():
        model.norm.weight.mul_(3)
    _same(fast, model, rand(5, 4))
    model.load_state_dict(_model(kind).state_dict())
    _same(fast, model, rand(5, 4))
    assert replayed(fast) == 2


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (lambda: (rand(6, 4),), {}),
        (lambda: (rand(4, 5).t(),), {}),
        (lambda: (rand(5, 4).double(),), {}),
        (lambda: (rand(5, 4), rand(5, 4)), {}),
        (lambda: (rand(5, 4),), {"scale": 2.0}),
        (lambda: (rand(5, 4),), {"scale": 1}),
    ],
)
def test_another_signature_is_eager(
    device: EmulatedDevice, args: Callable[[], Any], kwargs: dict[str, Any]
) -> None:
    model = _model(Encoder)
    fast = graphdoctor.capture(model, rand(5, 4), scale=1.0)
    given = args()
    if given[0].dtype is torch.float64:
        model.double()
    _same(fast, model, *given, **kwargs)
    assert replayed(fast) == 0


def test_one_tensor_given_twice_is_another_call(device: EmulatedDevice) -> None:
    model = _model(Encoder)
    fast = graphdoctor.capture(model, rand(5, 4), rand(5, 4))
    given = rand(5, 4)
    _same(fast, model, given, given)
    _same(fast, model, given, rand(5, 4))
    assert replayed(fast) == 1


@pytest.mark.parametrize(
    "mode",
    [
        lambda: torch.autocast("cuda", torch.bfloat16),
        lambda: torch.device("cuda"),
        torch.autograd.forward_ad.dual_level,
    ],
)
def test_another_mode_is_eager(
    device: EmulatedDevice, mode: Callable[[], AbstractContextManager[Any]]
) -> None:
    model = _model(Encoder)
    fast = graphdoctor.capture(model, rand(5, 4))
    given = rand(5, 4)
    with torch.no_grad(), mode():
        found, expected = fast(given), model(given)
    assert torch.equal(found["hidden"], expected["hidden"]) and replayed(fast) == 0
    _same(fast, model, given)
    assert replayed(fast) == 1


@pytest.mark.parametrize(
    ("read", "write", "value"),
    [
        (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
        (
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
            True,
        ),
        (torch._C._get_cublas_allow_tf32, torch._C._set_cublas_allow_tf32, None),
    ],
)
def test_another_switch_is_eager(
    device: EmulatedDevice, read: Callable[[], Any], write: Callable[[Any], object], value: Any
) -> None:
    model = _model(Encoder)
    fast = graphdoctor.capture(model, rand(5, 4))
    given, before = rand(5, 4), read()
    write(not before if value is None else value)
    try:
        _same(fast, model, given)
    finally:
        write(before)
    assert replayed(fast) == 0
    _same(fast, model, given)
    assert replayed(fast) == 1


def test_a_hook_for_all_modules_is_eager(device: EmulatedDevice) -> None:
    model = _model(Encoder)
    fast = graphdoctor.capture(model, rand(5, 4))
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, given, made: made * 2 if isinstance(module, nn.Linear) else None
    )
    try:
        _same(fast, model, rand(5, 4))
    finally:
        handle.remove()
    assert replayed(fast) == 0


def test_a_call_that_wants_gradients_is_eager(device: EmulatedDevice) -> None:
    model = _model(Encoder)
    fast = graphdoctor.capture(model, rand(5, 4))
    assert fast(rand(5, 4))["hidden"].requires_grad and replayed(fast) == 0


def test_a_capture_of_the_callers_records_the_operators(device: EmulatedDevice) -> None:
    model = _model(Encoder)
    fast = graphdoctor.capture(model, rand(5, 4))
    static, graph = rand(5, 4), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        made = fast(static)
    static.copy_(rand(5, 4))
    graph.replay()
    with torch.no_grad():
        assert torch.equal(made["hidden"], model(static)["hidden"])
    assert replayed(fast) == 0


def test_a_call_in_progress_is_not_disturbed(device: EmulatedDevice) -> None:
    model = _model(Encoder)
    fast = graphdoctor.capture(model, rand(5, 4))
    lock = graphdoctor.captured.module.behind(fast).replays._lock
    with lock:
        thread = threading.Thread(target=_same, args=(fast, model, rand(5, 4)))
        thread.start()
        thread.join()
    assert replayed(fast) == 0 and "another call was under way" in fast.fallbacks
    assert_equal(lambda x: fast(x)["hidden"], lambda x: model(x)["hidden"], rand(5, 4))
    assert replayed(fast) == 1
