"""What takes long to compute is computed once for equal inputs, and anew for any others."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from graphdoctor.device.observe import fallback
from graphdoctor.device.observe.known_results import (
    forget_unused_results,
    nothing_kept,
    prefer_new_results,
    results_known,
)
from graphdoctor.device.observe.operators import Call
from graphdoctor.target.state import saved_tensor
from graphdoctor.target.state.globals import PRECISIONS
from graphdoctor.target.state.snapshot import snapshot
from tests.support.emulated import captured, device

__all__ = ["device"]
pytestmark = pytest.mark.usefixtures("device")
PLENTY = 1 << 30


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operators whose kernels ran, while results are kept."""
    names: list[str] = []
    run: Callable[[Call], Any] = fallback._computed

    def noted(call: Call) -> Any:
        names.append(call.facts.base_name)
        return run(call)

    monkeypatch.setattr(fallback, "_computed", noted)
    with results_known(PLENTY):
        yield names


def rows(count: int = 512) -> torch.Tensor:
    return torch.randn(count, 256).cuda()


def weights() -> torch.Tensor:
    return torch.randn(256, 512).cuda()


def test_a_product_of_the_same_bits_is_computed_once(computed: list[str]) -> None:
    x, w = rows(), weights()
    first, second = x @ w, x.clone() @ w
    assert computed.count("mm") == 1 and torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr() and second.is_cuda


def test_a_result_that_is_written_to_does_not_change_what_is_known(computed: list[str]) -> None:
    x, w = rows(), weights()
    expected = (x @ w).clone()
    (x @ w).zero_()
    assert torch.equal(x @ w, expected) and computed.count("mm") == 1


@pytest.mark.parametrize("place", [0, 70_000, -1])
def test_one_other_element_is_another_product(computed: list[str], place: int) -> None:
    x, w = rows(), weights()
    before = x @ w
    x.view(-1)[place] += 1
    assert not torch.equal(x @ w, before) and computed.count("mm") == 2


def test_the_sign_of_two_elements_is_another_product(computed: list[str]) -> None:
    """Only the highest bit of two words differs."""
    x, w = rows().double(), weights().double()
    before = x @ w
    x[0, :2] *= -1
    assert not torch.equal(x @ w, before) and computed.count("mm") == 2


def test_weights_that_a_snapshot_has_are_told_by_it_until_they_change(computed: list[str]) -> None:
    x, w = rows(), weights()
    held = snapshot({"w": w})
    before = x @ w
    with torch._C._DisableTorchDispatch():  # no operator that anybody sees
        w[3, 5] += 1.0
    assert not torch.equal(x @ w, before)
    held.restore()
    assert torch.equal(x @ w, before) and computed.count("mm") == 2


def test_strides_and_shapes_are_part_of_what_is_known(computed: list[str]) -> None:
    square = torch.randn(512, 512).cuda()
    plain, turned = square @ square, square.t() @ square
    assert computed.count("mm") == 2 and not torch.equal(plain, turned)
    assert torch.equal(square.t().contiguous() @ square, square.t().contiguous() @ square)


def test_other_scalars_are_another_convolution(computed: list[str]) -> None:
    image, kernel = torch.randn(1, 16, 64, 64).cuda(), torch.randn(64, 16, 3, 3).cuda()
    for padding in (0, 1, 1):
        assert F.conv2d(image, kernel, padding=padding).shape[-1] == 62 + 2 * padding
    assert computed.count("convolution") == 2


def test_strides_of_results_are_those_that_were_computed(computed: list[str]) -> None:
    image = torch.randn(1, 16, 64, 64).cuda().to(memory_format=torch.channels_last)
    kernel = torch.randn(64, 16, 3, 3).cuda().to(memory_format=torch.channels_last)
    first, second = F.conv2d(image, kernel), F.conv2d(image, kernel)
    assert computed.count("convolution") == 1 and first.stride() == second.stride()


def test_gradients_flow_through_what_is_known(computed: list[str]) -> None:
    w = weights()
    x = rows().requires_grad_()
    for _ in range(2):
        x.grad = None
        (x @ w).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None and torch.allclose(x.grad[0], w.sum(1), rtol=1e-3, atol=1e-3)
    assert computed.count("mm") <= 3


def test_a_replay_computes_what_lies_in_its_memory_now(computed: list[str]) -> None:
    x, w = rows(), weights()
    graph, y = captured(lambda: x @ w)
    graph.replay()
    assert computed.count("mm") == 1 and torch.equal(y, x @ w)
    x.mul_(2)
    stale = y.clone()
    graph.replay()
    assert not torch.equal(y, stale) and torch.equal(y, x @ w) and computed.count("mm") == 2


def test_small_work_and_work_that_is_mostly_reading_is_computed(computed: list[str]) -> None:
    few, w = rows(4), torch.randn(256, 65536).cuda()
    for _ in range(2):
        few @ few.t()
        few @ w
    assert computed.count("mm") == 4


def test_what_was_computed_once_only_is_forgotten_when_asked(computed: list[str]) -> None:
    used, unused, w = rows(), rows(), weights()
    for x in (used, used, unused):
        x @ w
    forget_unused_results()
    for x in (used, unused):
        x @ w
    assert computed.count("mm") == 3


def test_no_more_is_kept_than_there_is_memory_for(
    monkeypatch: pytest.MonkeyPatch, computed: list[str]
) -> None:
    x, w = rows(), weights()
    with results_known((x @ w).nbytes - 1):
        x @ w
        x @ w
    assert computed.count("mm") == 3


def test_where_memory_is_short_new_results_come_before_those_of_other_inputs(
    computed: list[str],
) -> None:
    first, second, third, w = rows(), rows(), rows(), weights()
    one = (first @ w).nbytes
    computed.clear()
    with results_known(2 * one):
        for x in (first, second):
            x @ w
        prefer_new_results()
        second @ w  # comes again, and is new with that
        for x in (third, second, third):
            x @ w
        assert computed.count("mm") == 3
        first @ w  # was forgotten, and finds no room now
        first @ w
        third @ w
    assert computed.count("mm") == 5


def test_a_result_that_does_not_fill_its_memory_is_not_kept(
    computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may have the rest of it."""
    run = fallback._computed

    def in_part(call: Call) -> Any:
        result = run(call)
        return result.repeat(2, 1)[:512] if call.facts.base_name == "mm" else result

    monkeypatch.setattr(fallback, "_computed", in_part)
    x, w = rows(), weights()
    assert torch.equal(x @ w, x @ w) and computed.count("mm") == 2


def test_nothing_is_known_after_the_block() -> None:
    x, w = rows(), weights()
    with results_known(PLENTY):
        x @ w
    with results_known(PLENTY):
        forget_unused_results()
        assert torch.equal(x @ w, x @ w)


def memory_of(tensor: torch.Tensor) -> int:
    """Where it lies; `data_ptr()` would make torch copy what is shared."""
    where: int = vars(torch._C)["_data_address"](tensor)
    return where


def test_a_known_result_is_copied_only_by_whoever_writes_there(computed: list[str]) -> None:
    x, w = rows(), weights()
    first, second = x @ w, x @ w
    assert memory_of(first) == memory_of(second)
    second.add_(1)
    assert memory_of(first) != memory_of(second) and torch.equal(first + 1, second)


def test_another_part_of_a_known_result_is_another_input(computed: list[str]) -> None:
    x, w, other = rows(), weights(), torch.randn(512, 512).cuda()
    for _ in range(2):
        y = x @ w
        upper, lower = y[:256] @ other, y[256:] @ other
        assert not torch.equal(upper, lower)
    assert computed.count("mm") == 3


def test_a_known_result_that_was_written_to_is_another_input(computed: list[str]) -> None:
    x, w, other = rows(), weights(), torch.randn(512, 512).cuda()
    before = (x @ w) @ other
    y = x @ w
    y[0, 0] += 1.0
    assert not torch.equal(y @ other, before) and computed.count("mm") == 3


@pytest.mark.parametrize(
    "resize",
    [
        lambda y: y.untyped_storage().resize_(0).resize_(1 << 20),
        lambda y: y.resize_(1024, 1024),
        lambda y: torch.mul(torch.ones(1024, 1024, device="cuda"), 2, out=y),
    ],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_known_result_can_be_given_another_size(
    computed: list[str], resize: Callable[[torch.Tensor], object]
) -> None:
    x, w = rows(), weights()
    expected = (x @ w).clone()
    y = x @ w
    resize(y)
    y.zero_()
    assert torch.equal(x @ w, expected) and computed.count("mm") == 1


def test_a_copy_of_a_known_result_is_the_same_input(computed: list[str]) -> None:
    """As where a region of a step is given what another one computed."""
    x, w, other = rows(), weights(), torch.randn(512, 512).cuda()
    y = x @ w
    assert torch.equal(y @ other, y.clone() @ other)
    assert torch.equal(y.t() @ y, y.clone().t() @ y.clone()) and computed.count("mm") == 3


def test_a_snapshot_s_number_is_told_from_a_sum_that_is_the_same_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zlib, "crc32", lambda held: 7)
    monkeypatch.setattr(zlib, "adler32", lambda held: 0)
    monkeypatch.setattr(saved_tensor, "_NUMBERS", count(7))
    held, other = torch.tensor([3]), torch.tensor([7])
    kept = snapshot({"held": held})
    assert saved_tensor.copy_with_bits_of(held) == saved_tensor.contents_of(other)[1:] == (7, 0)
    assert saved_tensor.contents_of(held) != saved_tensor.contents_of(other)
    kept.restore()


def test_what_a_forgotten_result_held_is_not_taken_for_the_next_one_s(computed: list[str]) -> None:
    """The next result may lie where it lay."""
    w = torch.randn(512, 512).cuda()
    for _ in range(4):
        x = torch.randn(512, 512).cuda()
        y = x @ w
        assert torch.equal(y @ w, y.clone() @ w)
        del y
        forget_unused_results()
        forget_unused_results()
    assert computed.count("mm") == 8


def test_what_is_known_is_used_where_nothing_is_kept(computed: list[str]) -> None:
    x, other, w = rows(), rows(), weights()
    x @ w
    with nothing_kept():
        for given in (x, other, other):
            given @ w
    x @ w
    assert computed.count("mm") == 3


@pytest.mark.skipif(not PRECISIONS, reason="torch 2.9 brought these switches")
def test_another_precision_of_the_cpu_s_products_is_another_product(computed: list[str]) -> None:
    x, w = rows(), weights()
    products: Any = torch.backends.mkldnn.matmul
    before = products.fp32_precision
    try:
        for precision in ("ieee", "bf16", "bf16"):
            products.fp32_precision = precision
            x @ w
    finally:
        products.fp32_precision = before
    assert computed.count("mm") == 2


@pytest.mark.skipif(not PRECISIONS, reason="torch 2.9 brought these switches")
def test_results_are_known_where_somebody_has_used_torch_s_new_switches(
    computed: list[str],
) -> None:
    """The old one raises then."""
    x, w = rows(), weights()
    products: Any = torch.backends.cuda.matmul
    before = products.fp32_precision
    try:
        products.fp32_precision = "tf32"
        assert torch.equal(x @ w, x @ w) and computed.count("mm") == 1
    finally:
        products.fp32_precision = before
