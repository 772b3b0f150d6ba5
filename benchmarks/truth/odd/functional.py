"""Steps with torch.func."""

from __future__ import annotations

import torch

from odd.step import mlp, odd, x8


@odd
def func_grad():
    return torch.func.grad(lambda x: x.sin().sum()), (x8(),)


@odd
def func_vmap_of_grad():
    model = mlp()
    params = dict(model.named_parameters())

    def loss(p, one):
        return torch.func.functional_call(model, p, (one,)).square().sum()

    def step(x):
        with torch.no_grad():
            return torch.func.vmap(torch.func.grad(loss), (None, 0))(params, x)

    return step, (x8(),)


@odd
def func_jvp():
    return lambda x, t: torch.func.jvp(torch.sin, (x,), (t,)), (x8(), x8())


@odd
def func_jacrev():
    return torch.func.jacrev(lambda x: x.square().sum(1)), (x8(),)


@odd
def func_hessian():
    return torch.func.hessian(lambda x: x.pow(3).sum()), (x8(4),)


@odd
def func_vmap_random():
    return torch.func.vmap(lambda x: x + torch.rand_like(x), randomness="different"), (x8(),)


@odd
def func_vmap_item():
    return lambda x: torch.func.vmap(lambda r: r * 2)(x) * x.sum().item(), (x8(),)


@odd
def func_linearize():
    def step(x, t):
        _, linear = torch.func.linearize(torch.sin, x)
        return linear(t)

    return step, (x8(), x8())


@odd
def ensemble_by_vmap():
    from torch.func import functional_call, stack_module_state, vmap

    parameters, buffers = stack_module_state([mlp() for _ in range(3)])
    base = mlp().to("meta")

    def one(parameters, buffers, x):
        return functional_call(base, (parameters, buffers), (x,))

    return lambda x: vmap(one, (0, 0, None))(parameters, buffers, x), (x8(),)
