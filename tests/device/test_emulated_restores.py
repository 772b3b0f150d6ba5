"""Leaving the emulated device puts back, bit for bit, what entering it replaced."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe import patches
from graphdoctor.target.state.saved_tensor import is_shared
from graphdoctor.target.state.snapshot import snapshot
from tests.support.emulated import captured

# Names that torch itself makes on first use, and caches.
LAZY = {"__warningregistry__", "_storage_classes"}


def owners() -> dict[str, object]:
    """Everything that the emulation may touch: torch's modules, and the classes it patches."""
    modules = {
        name: module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and (name == "torch" or name.startswith("torch."))
    }
    classes: dict[str, object] = {
        "Tensor": torch.Tensor,
        "Module": nn.Module,
        "Optimizer": torch.optim.Optimizer,
        "autocast": torch.autocast,
        "graph": torch.cuda.graph,
        "Thread": threading.Thread,
        "torch._C": torch._C,
        "TensorBase": torch._C.TensorBase,
    }
    return {**modules, **classes}


def attributes() -> dict[tuple[str, str], int]:
    """The identity of every attribute."""
    return {
        (name, attribute): id(value)
        for name, owner in owners().items()
        for attribute, value in list(vars(owner).items())
        if attribute not in LAZY
    }


def switches() -> list[Any]:
    return [
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cpu"),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
    ]


def use_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    x = torch.ones(2, 4, device="cuda")
    with torch.autocast("cuda"):
        model(x).sum().backward()
    optimizer.step()
    str(x)
    graph, _ = captured(lambda: x + 1)
    graph.replay()


def changed(before: dict[tuple[str, str], int]) -> set[tuple[str, str]]:
    """Attributes that are others now; modules that were only imported since do not count."""
    after = attributes()
    return {key for key, identity in before.items() if after.get(key) != identity} | {
        key for key in after.keys() - before.keys() if key[0] not in sys.modules
    }


@pytest.fixture(autouse=True, scope="module")
def torch_is_warm() -> None:
    """What torch imports and caches on first use is none of the emulation's doing."""
    with EmulatedDevice():
        use_it()


def test_every_attribute_is_put_back() -> None:
    before, state = attributes(), switches()
    with EmulatedDevice():
        use_it()
        assert torch.cuda.is_available()
    assert changed(before) == set() and switches() == state


MISDEEDS: dict[str, Any] = {
    "an error": lambda: 1 / 0,
    "a default device": lambda: torch.set_default_device("cuda"),
    "a stream": lambda: torch.cuda.set_stream(torch.cuda.Stream()),
    "a capture under way": lambda: torch.cuda.graph(torch.cuda.CUDAGraph()).__enter__(),
    "a failed capture": lambda: captured(lambda: torch.ones(1, device="cuda").item()),
    "another patch": lambda: setattr(torch.cuda, "synchronize", None),
    "a legacy default": lambda: torch.set_default_tensor_type("torch.cuda.FloatTensor"),
    "an exit": lambda: sys.exit(3),
}


@settings(max_examples=8)
@given(st.lists(st.sampled_from(sorted(MISDEEDS)), max_size=3))
def test_whatever_the_code_inside_does(names: list[str]) -> None:
    before, state = attributes(), switches()
    try:
        with EmulatedDevice():
            for name in names:
                MISDEEDS[name]()
    except (ZeroDivisionError, RuntimeError, SystemExit, TypeError):
        pass
    assert changed(before) == set() and switches() == state


def module_that_runs(code: str) -> Iterator[ModuleType]:
    module = ModuleType("somebodys_module")
    sys.modules[module.__name__] = module
    exec(code, vars(module))
    yield module
    del sys.modules[module.__name__]


IMPORTS = "from torch.cuda import is_available as has_gpu, Stream\nfrom torch import compile"


def test_names_taken_before_are_reached_and_given_back() -> None:
    for module in module_that_runs(IMPORTS):
        before = dict(vars(module))
        with EmulatedDevice():
            assert module.has_gpu() and module.Stream is torch.cuda.Stream
        assert dict(vars(module)) == before


def test_names_taken_meanwhile_are_given_back() -> None:
    with EmulatedDevice():
        modules = module_that_runs(IMPORTS)
        module = next(modules)
        assert module.has_gpu()
    assert module.has_gpu is torch.cuda.is_available
    assert module.Stream is torch.cuda.Stream and module.compile is torch.compile
    assert next(modules, None) is None


def test_a_name_that_is_written_to_is_reached_however_often_the_device_was_entered() -> None:
    """Modules are looked through again only where somebody has written to them since."""
    for module in module_that_runs("has_gpu = None"):
        for _ in range(2):
            with EmulatedDevice():
                assert module.has_gpu is None
        module.has_gpu = torch.cuda.is_available
        for _ in range(2):
            with EmulatedDevice():
                assert module.has_gpu()
            assert module.has_gpu is torch.cuda.is_available
        module.has_gpu = None
        with EmulatedDevice():
            module.has_gpu = torch.cuda.is_available
        assert module.has_gpu is torch.cuda.is_available


def test_what_somebody_else_put_into_torch_is_reached_by_name_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in module_that_runs("has_gpu = lambda: 'perhaps'"):
        with EmulatedDevice():
            pass
        theirs = module.has_gpu
        monkeypatch.setattr(torch.cuda, "is_available", theirs)
        with EmulatedDevice():
            assert module.has_gpu() is True
        assert module.has_gpu is theirs and torch.cuda.is_available is theirs


def test_names_are_reached_where_no_version_says_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patches, "_version", lambda: None)
    test_a_name_that_is_written_to_is_reached_however_often_the_device_was_entered()


def test_a_device_can_be_entered_again() -> None:
    device = EmulatedDevice()
    for _ in range(2):
        with device:
            assert torch.ones(2, device="cuda").is_cuda
    assert torch.ones(2).is_cpu


def test_a_capture_that_was_left_open_is_given_up() -> None:
    device = EmulatedDevice()
    with device:
        x = torch.zeros(2, device="cuda")
        torch.cuda.graph(torch.cuda.CUDAGraph()).__enter__()
        x.add_(1)
    assert x.tolist() == [0, 0]
    with device:
        assert not torch.cuda.is_current_stream_capturing()
        graph, y = captured(lambda: torch.ones(2, device="cuda") + 1)
        graph.replay()
        assert y.tolist() == [2, 2]


def test_tensors_that_leave_the_device_are_plain_ones() -> None:
    with EmulatedDevice():
        x = torch.ones(2, device="cuda")
    assert x.is_cpu and x.device.type == "cpu" and (x + 1).tolist() == [2, 2]


def test_only_what_the_device_made_may_lie_elsewhere_later() -> None:
    with EmulatedDevice() as device:
        device.table.keeps_addresses = False
        given = torch.ones(4)
        placed = torch.ones(4)
        device.put(placed)
        made = given.cuda()
        found = [
            device.table.is_ours(tensor.untyped_storage())
            for tensor in (given, placed, placed.view(2, 2), made, made[1:], placed + 1)
        ]
    assert found == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    "address_of",
    [
        lambda tensor: tensor.data_ptr(),
        lambda tensor: tensor.untyped_storage().data_ptr(),
        lambda tensor: tensor.__cuda_array_interface__["data"][0],
    ],
)
def test_memory_stays_where_it_is_once_somebody_may_know_its_address(
    address_of: Callable[[torch.Tensor], int],
) -> None:
    with EmulatedDevice() as device:
        asked, other = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
        assert not device.table.is_ours(other.untyped_storage())
        device.table.keeps_addresses = False
        address = address_of(asked[1:])
        found = [device.table.is_ours(each.untyped_storage()) for each in (asked, other)]
        before = snapshot({"x": asked}, memory=device.table)
        asked.add_(1)
        assert address_of(asked[1:]) == address
        before.restore()
    assert found == [False, True]


def test_what_nobody_wrote_to_is_still_shared_after_it_was_put_back() -> None:
    with EmulatedDevice() as device:
        device.table.keeps_addresses = False
        weight = torch.ones(100_000, device="cuda")
        before = snapshot({"weight": weight}, memory=device.table)
        for _ in range(2):
            before.restore()
            assert is_shared(weight)
        weight.add_(1)
        assert not is_shared(weight)
        before.restore()
        assert weight.sum() == 100_000
