"""Steps with compilers, operators of one's own and modes of torch."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F

from odd.step import CUDA, mlp, odd, x8


@odd
def own_operator():
    if not hasattr(torch.ops, "odd_steps") or not hasattr(torch.ops.odd_steps, "twice"):

        @torch.library.custom_op("odd_steps::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2

    return lambda x: torch.ops.odd_steps.twice(x) + 1, (x8(),)


@odd
def own_operator_that_reads():
    if not hasattr(torch.ops.odd_steps, "scaled"):

        @torch.library.custom_op("odd_steps::scaled", mutates_args=())
        def scaled(x: torch.Tensor) -> torch.Tensor:
            return x * float(x.sum())

    return lambda x: torch.ops.odd_steps.scaled(x) + 1, (x8(),)


@odd
def flex_attention_eager():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 16, 16, device=CUDA)

    def step(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return flex_attention(q + x.mean(), q, q)

    return step, (x8(),)


@odd
def attention_with_dropout():
    q = torch.randn(1, 2, 16, 16, device=CUDA, requires_grad=True)

    def step(x):
        q.grad = None
        loss = F.scaled_dot_product_attention(q * x.mean(), q, q, dropout_p=0.1).sum()
        loss.backward()
        return loss.detach()

    return step, (x8(),)


@odd
def scripted():
    return torch.jit.script(mlp()), (x8(),)


@odd
def traced():
    return torch.jit.trace(mlp(), x8()), (x8(),)


@odd
def fx_traced():
    return torch.fx.symbolic_trace(mlp()).cuda(), (x8(),)


@odd
def function_mode_in_step():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def step(x):
        with Mode():
            return torch.sin(x) * 2

    return step, (x8(),)


@odd
def default_dtype_changed_in_step():
    def step(x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return x * torch.ones(8, device=CUDA)
        finally:
            torch.set_default_dtype(before)

    return step, (x8(),)


@odd
def device_context_in_step():
    def step(x):
        with torch.device(CUDA):
            return x + torch.arange(8) + torch.zeros(8)

    return step, (x8(),)


@odd
def deterministic_scatter():
    at = torch.tensor([0, 1, 1, 0, 2, 2, 3, 3], device=CUDA)

    def step(x):
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            return torch.zeros(8, 8, device=CUDA).index_add_(0, at, x)
        finally:
            torch.use_deterministic_algorithms(False)

    return step, (x8(),)


@odd
def fake_quantized():
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    quantize = FakeQuantize(MovingAverageMinMaxObserver, 0, 255).cuda()
    return quantize, (x8(),)


@odd
def inference_mode_in_step():
    model = mlp()

    def step(x):
        with torch.inference_mode():
            return model(x) + 1

    return step, (x8(),)
