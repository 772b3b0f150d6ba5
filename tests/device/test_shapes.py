"""The emulated device on shapes only: what has values, what is assumed, and what that leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice, EmulationLimit
from graphdoctor.values.host_events import AssumedValue, HostEvent


class Told:
    """The assumptions that the device told of."""

    def __init__(self) -> None:
        self.what: list[str] = []

    def before(self, call: Any) -> None:
        """Operators say nothing here."""

    def after(self, call: Any) -> None:
        """Operators say nothing here."""

    def event(self, event: HostEvent) -> None:
        if isinstance(event, AssumedValue):
            self.what.append(event.value)


@pytest.fixture
def told() -> Iterator[Told]:
    observer = Told()
    with EmulatedDevice() as device:
        device.leave_values_out()
        with device.observed_by(observer):
            yield observer


def unknown(*shape: int) -> torch.Tensor:
    """On the device, larger than what would be computed."""
    return torch.empty(2**20, device="cuda")[: torch.Size(shape).numel()].view(shape)


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda x: x.sum().item(), 0.0),
        (lambda x: bool((x > 0).any()), False),
        (lambda x: bool((x > 0).all()), True),
        (lambda x: bool(torch.isnan(x).any()), False),
        (lambda x: int(x.argmax()), 0),
        (lambda x: x[0, 0].item(), 0.0),
        (lambda x: x.sum().cpu().item(), 0.0),
        (lambda x: x[:1, :2].tolist(), [[0.0, 0.0]]),
    ],
)
def test_a_value_that_the_host_needs_is_assumed_and_told(read: Any, value: Any, told: Told) -> None:
    assert read(unknown(3, 4)) == value
    assert told.what


@pytest.mark.parametrize(
    ("search", "shape"),
    [
        (lambda x: (x > 0).nonzero(), (12, 2)),
        (lambda x: x[x > 0], (12,)),
        (lambda x: x[:, x[0] > 0], (3, 4)),
        (lambda x: x.masked_select(x > 0), (12,)),
        (lambda x: x.unique(), (12,)),
        (lambda x: x.unique(dim=0), (3, 4)),
        (lambda x: torch.unique_consecutive(x), (12,)),
        (lambda x: x.repeat_interleave((x[:, 0] > 0).long(), dim=0), (3, 4)),
        (lambda x: (x > 0).long().view(-1).bincount(minlength=5), (5,)),
        (lambda x: torch.where(x > 0)[1], (12,)),
    ],
)
def test_a_size_that_depends_on_values_is_that_of_everything(
    search: Any, shape: tuple[int, ...], told: Told
) -> None:
    found = search(unknown(3, 4))
    assert tuple(found.shape) == shape
    assert found.is_cuda
    assert told.what


def test_what_is_made_of_pythons_numbers_keeps_its_values(told: Told) -> None:
    sizes = torch.tensor([[2, 3], [4, 5]], device="cuda")
    assert (sizes.prod(-1) + torch.arange(2, device="cuda")).tolist() == [6, 21]
    assert bool((sizes > 1).all())
    assert told.what == []


def test_what_was_found_everywhere_can_be_used_as_an_index(told: Told) -> None:
    experts = (unknown(3, 4).sum(-1) > 0).nonzero()
    assert [int(expert) for expert in experts.view(-1)] == [0, 1, 2]


def test_memory_without_values_is_never_written(told: Told) -> None:
    weight = torch.full((64, 64), 3.0)
    with torch.no_grad():
        on_device = weight.clone()
        entered().put(on_device)
        on_device.mul_(2).add_(on_device)
        torch._foreach_add_([on_device], 1.0)
    with torch._C._DisableTorchDispatch():
        assert torch.equal(on_device, weight)


def entered() -> EmulatedDevice:
    """The device that is entered."""
    device: EmulatedDevice = torch.cuda.CUDAGraph.device  # type: ignore[attr-defined]
    return device


def test_views_share_the_memory_that_nobody_touches(told: Told) -> None:
    table = entered().table
    x = unknown(6, 4)
    for view in (x.t(), x[1:], x.view(2, 12), x.unsqueeze(0).expand(3, 6, 4), x.detach()):
        assert table.info(view) is table.info(x)
    assert table.info(x + 1) is not table.info(x)


def test_equal_shapes_share_a_result_and_not_their_tensors(told: Told) -> None:
    x, y = unknown(5), torch.randn(2**20, device="cuda")[:5]
    assert x.add_(x) is x
    assert x.add_(y) is x
    assert y.add_(x) is y
    assert torch.add(x, 1).dtype is torch.float32
    assert torch.add(x.long(), True).dtype is torch.int64
    assert torch.add(x.long(), 1.0).dtype is torch.float32


def test_autograd_gives_gradients_of_the_right_shapes(told: Told) -> None:
    x = unknown(5, 4).requires_grad_()
    torch.nn.functional.gelu(x @ x.t()).softmax(-1).sum().backward()
    assert x.grad is not None
    assert (x.grad.shape, x.grad.is_cuda, told.what) == (x.shape, True, [])


def test_autocast_casts_as_with_values(told: Told) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        product = unknown(5, 4) @ unknown(4, 3)
        assert (product.dtype, product.float().softmax(-1).dtype) == (torch.bfloat16, torch.float32)


def test_a_wrong_shape_is_refused_as_ever(told: Told) -> None:
    with pytest.raises(RuntimeError, match=r"\[5, 4\] X \[5, 4\]"):
        unknown(5, 4) @ unknown(5, 4)


def test_what_has_no_shape_without_values_is_a_limit(told: Told) -> None:
    with pytest.raises(EmulationLimit, match="sparse"):
        unknown(4, 4).to_sparse() @ unknown(4, 4)


def test_deterministic_torch_fills_no_memory(told: Told) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        made = torch.randn(2**20, device="cuda")
    finally:
        torch.use_deterministic_algorithms(False)
    assert made.shape == (2**20,)
    assert torch.utils.deterministic.fill_uninitialized_memory
