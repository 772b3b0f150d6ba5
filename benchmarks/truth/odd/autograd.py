"""Steps with autograd's own means: functions, hooks, checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from odd.step import mlp, odd, trained, x8


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


class ReadsInBackward(Cube):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * float(x.abs().max())


@odd
def own_function():
    model = mlp()
    return trained(model, loss=lambda out: Cube.apply(out).mean()), (x8(),), model


@odd
def own_function_reading_in_backward():
    model = mlp()
    return trained(model, loss=lambda out: ReadsInBackward.apply(out).mean()), (x8(),), model


@odd
def gradient_penalty():
    model = mlp()

    def step(x):
        x = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        penalty = (grad.norm(dim=1) - 1).square().mean()
        model.zero_grad()
        penalty.backward()
        return penalty.detach()

    return step, (x8(),), model


@odd
def anomaly_mode():
    model = mlp()
    run = trained(model)

    def step(x):
        with torch.autograd.detect_anomaly(check_nan=True):
            return run(x)

    return step, (x8(),), model


@odd
def hook_replaces_output():
    model = mlp()
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    return trained(model), (x8(),), model


@odd
def hook_counts():
    model, seen = mlp(), []
    model[0].register_forward_hook(lambda module, args, out: seen.append(1))
    return trained(model), (x8(),), model


@odd
def hook_clips_by_value_read():
    model = mlp()
    for p in model.parameters():
        p.register_hook(lambda g: g / max(1.0, g.norm().item()))
    return trained(model), (x8(),), model


@odd
def post_accumulate_hook_steps():
    model = mlp()
    for p in model.parameters():
        own = torch.optim.SGD([p], lr=0.01)

        def after(param, own=own):
            own.step()
            own.zero_grad()

        p.register_post_accumulate_grad_hook(after)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return step, (x8(),), model


@odd
def saved_tensors_on_cpu():
    model = mlp()
    run = trained(model)

    def step(x):
        with torch.autograd.graph.save_on_cpu():
            return run(x)

    return step, (x8(),), model


def checkpointed(*more, **options):
    model = nn.Sequential(mlp(), *more)

    def call(x):
        return torch.utils.checkpoint.checkpoint(model, x, **options)

    def step(x):
        model.zero_grad()
        loss = call(x.detach().requires_grad_()).square().mean()
        loss.backward()
        return loss.detach()

    return step, (x8(),), model


@odd
def checkpoint_no_reentrant():
    return checkpointed(use_reentrant=False)


@odd
def checkpoint_reentrant():
    return checkpointed(use_reentrant=True)


@odd
def checkpoint_with_dropout():
    return checkpointed(nn.Dropout(0.5), use_reentrant=False)


@odd
def checkpoint_reentrant_with_dropout():
    return checkpointed(nn.Dropout(0.5), use_reentrant=True)


@odd
def checkpoint_without_rng_with_dropout():
    return checkpointed(nn.Dropout(0.5), use_reentrant=False, preserve_rng_state=False)


@odd
def dropout_behind_a_state_that_is_set_back():
    def step(x):
        state = torch.cuda.get_rng_state()
        first = F.dropout(x, 0.5)
        torch.cuda.set_rng_state(state)
        return first, F.dropout(x, 0.5)

    return step, (x8(),)


@odd
def checkpoint_without_rng():
    return checkpointed(use_reentrant=False, preserve_rng_state=False)


@odd
def checkpoint_sequential():
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(4))
    ).cuda()

    def step(x):
        model.zero_grad()
        out = torch.utils.checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=False)
        out.sum().backward()
        return out.detach()

    return step, (x8(),), model
