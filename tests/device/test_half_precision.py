"""Products, convolutions and attention in half precision run in float32 where the CPU is slow, and nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe import fallback
from graphdoctor.device.observe.operators import Call, facts_of
from tests.support.emulated import Seen, captured, device

__all__ = ["device"]
aten = torch.ops.aten
Case = tuple[Any, tuple[Any, ...]]


@pytest.fixture(autouse=True)
def no_quick_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor for which oneDNN has no kernels of half precision."""
    monkeypatch.setattr(fallback, "_has_quick_kernels", lambda dtype: False)


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last)


def heads() -> torch.Tensor:
    return values(2, 10, 4, 16).transpose(1, 2)


ONE, SAME, NONE = [1, 1], [1, 1], [0, 0]
CASES: dict[str, Callable[[], Case]] = {
    "mm": lambda: (aten.mm.default, (values(16, 8), values(8, 4))),
    "one row": lambda: (aten.mm.default, (values(1, 8), values(8, 4))),
    "addmm": lambda: (aten.addmm.default, (values(4), values(16, 8), values(4, 8).t())),
    "bmm": lambda: (aten.bmm.default, (values(3, 16, 8), values(3, 8, 4))),
    "baddbmm": lambda: (
        aten.baddbmm.default,
        (values(3, 16, 4), values(3, 16, 8), values(3, 8, 4)),
    ),
    "convolution": lambda: (
        aten.convolution.default,
        (values(2, 8, 9, 9), values(6, 8, 3, 3), values(6), ONE, SAME, ONE, False, NONE, 1),
    ),
    "channels last": lambda: (
        aten.convolution.default,
        (last(values(2, 8, 9, 9)), values(6, 8, 3, 3), None, ONE, SAME, ONE, False, NONE, 1),
    ),
    "transposed": lambda: (
        aten.convolution.default,
        (values(2, 8, 9, 9), values(8, 6, 2, 2), values(6), [2, 2], NONE, ONE, True, NONE, 1),
    ),
    "convolution's backward": lambda: (
        aten.convolution_backward.default,
        (
            *(values(2, 6, 9, 9), values(2, 8, 9, 9), values(6, 8, 3, 3)),
            *([6], ONE, SAME, ONE, False, NONE, 1, [True, True, True]),
        ),
    ),
    "attention": lambda: (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        (heads(), heads(), heads()),
    ),
}


def call_of(case: Case, dtype: torch.dtype) -> Call:
    func, args = case
    narrow = tuple(a.to(dtype) if isinstance(a, torch.Tensor) else a for a in args)
    call = Call(func, facts_of(func), narrow, {})
    call.on_cuda = True
    return call


def as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_the_result_is_made_as_the_narrow_operator_makes_it(name: str, dtype: torch.dtype) -> None:
    call = call_of(CASES[name](), dtype)
    assert fallback.is_slow_when_narrow(call)
    own, wide = as_tuple(call.func(*call.args)), as_tuple(fallback.run_wider(call))
    assert len(own) == len(wide)
    for expected, made in zip(own, wide, strict=True):
        assert (made.dtype, made.shape, made.stride()) == (
            expected.dtype,
            expected.shape,
            expected.stride(),
        )
        torch.testing.assert_close(made, expected, atol=0.1, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attentions_backward_keeps_its_logarithms_wide(dtype: torch.dtype) -> None:
    q, k, v, grad = (heads().to(dtype) for _ in range(4))
    out, logarithms = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    func = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    call = Call(func, facts_of(func), (grad, q, k, v, out, logarithms, 0.0, False), {})
    call.on_cuda = True
    assert fallback.is_slow_when_narrow(call)
    for made, expected in zip(fallback.run_wider(call), func(*call.args), strict=True):
        assert made.dtype == dtype and made.stride() == expected.stride()
        torch.testing.assert_close(made, expected, atol=0.1, rtol=0.05)


def test_convolutions_backward_makes_only_the_gradients_that_are_asked_for() -> None:
    func, args = CASES["convolution's backward"]()
    made = fallback.run_wider(call_of((func, (*args[:-1], [True, False, True])), torch.float16))
    assert [gradient is None for gradient in made] == [False, True, False]


def test_a_row_times_a_linear_layers_weight_runs_as_it_is() -> None:
    case = (aten.mm.default, (values(1, 8), values(4, 8).t()))
    assert not fallback.is_slow_when_narrow(call_of(case, torch.float16))


def test_work_of_the_cpu_and_in_float32_runs_as_it_is() -> None:
    case = CASES["mm"]()
    on_cpu = call_of(case, torch.float16)
    on_cpu.on_cuda = False
    assert not fallback.is_slow_when_narrow(on_cpu)
    assert not fallback.is_slow_when_narrow(call_of(case, torch.float32))


def test_a_processor_with_kernels_of_its_own_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_has_quick_kernels", lambda dtype: dtype == torch.bfloat16)
    assert not fallback.is_slow_when_narrow(call_of(CASES["mm"](), torch.bfloat16))
    assert fallback.is_slow_when_narrow(call_of(CASES["mm"](), torch.float16))


@pytest.mark.usefixtures("device")
def test_a_step_and_its_replay_run_in_float32_on_the_emulated_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide: list[str] = []
    run_wider = fallback.run_wider

    def run(call: Call) -> Any:
        wide.append(call.facts.base_name)
        return run_wider(call)

    monkeypatch.setattr(fallback, "run_wider", run)
    x, layer = torch.ones(1, 3, 9, 9, device="cuda").half(), nn.Conv2d(3, 4, 3).cuda().half()
    graph, _ = captured(lambda: layer(x))
    assert wide == ["convolution"]
    graph.replay()
    assert wide == ["convolution"] * 2


@pytest.mark.usefixtures("device")
def test_two_dtypes_are_refused_as_ever() -> None:
    half, single = torch.ones(16, 8, device="cuda").half(), torch.ones(8, 4, device="cuda")
    with pytest.raises(RuntimeError, match="dtype"):
        half @ single
    with pytest.raises(RuntimeError):
        F.conv1d(torch.ones(1, 8, 9, device="cuda").half(), torch.ones(4, 8, 3, device="cuda"))


def test_the_recording_has_the_operators_as_issued_and_no_casts(device: EmulatedDevice) -> None:
    x, layer = torch.ones(16, 8, device="cuda").half(), nn.Linear(8, 4).cuda().half()
    seen = Seen()
    with device.observed_by(seen):
        layer(x).sum().backward()
    assert "addmm" in seen.calls and "_to_copy" not in seen.calls
    assert seen.fallbacks == []
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float16


@pytest.mark.usefixtures("device")
def test_a_replay_has_eagers_bits() -> None:
    layer = nn.Conv2d(3, 4, 3).cuda().half()
    x = torch.randn(2, 3, 9, 9, device="cuda").half()
    graph, y = captured(lambda: layer(x).flatten(1) @ torch.ones(196, 5, device="cuda").half())
    x.normal_()
    graph.replay()
    eager = layer(x).flatten(1) @ torch.ones(196, 5, device="cuda").half()
    assert torch.equal(y, eager)


@pytest.mark.usefixtures("device")
def test_autocast_computes_in_half_forward_and_backward() -> None:
    layer = nn.Linear(8, 4).cuda()
    x = torch.randn(16, 8, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.float16):
        y = layer(x)
    y.float().sum().backward()
    assert y.dtype == torch.float16 and x.grad is not None and x.grad.dtype == torch.float32
    expected = (x.detach().half().float() @ layer.weight.half().float().t()).add(
        layer.bias.half().float()
    )
    torch.testing.assert_close(y.detach(), expected.detach().half(), atol=2e-3, rtol=2e-3)
