"""Steps that nobody wrote a rule for: what graphdoctor says of each without a GPU, and what CUDA alone makes of it.

python benchmarks/truth/odd_steps.py --device emulated --json FILE
python benchmarks/truth/odd_steps.py --device raw --json FILE     # on a GPU; several processes
python benchmarks/truth/odd_steps.py --device cuda --json FILE    # what graphdoctor says there
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import functools
import itertools
import json
import random
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.nn.utils.prune
import torch.utils.checkpoint
from torch import nn

STEPS: dict[str, Callable[[], tuple[Any, ...]]] = {}
CUDA = "cuda"


def odd(build: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    """`build` returns the step, its inputs, and modules or tensors that it changes."""
    STEPS[build.__name__] = build
    return build


def x8(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (8, 8)), device=CUDA)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).cuda()


def trained(model: nn.Module, optimizer: Any = None, loss: Any = None) -> Callable[..., Any]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        value = (loss or (lambda out: out.square().mean()))(model(x))
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def scaled(model: nn.Module, optimizer: Any) -> Callable[..., Any]:
    """A step of float16, its gradients scaled."""
    scaler = torch.amp.GradScaler(CUDA)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(CUDA, dtype=torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


# torch.func


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


# autograd


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


# optimizers and averages


@odd
def lbfgs():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    return step, (x8(),), model


@odd
def adam_capturable_foreach():
    model = mlp()
    return trained(model, torch.optim.Adam(model.parameters(), capturable=True)), (x8(),), model


@odd
def adam_fused():
    model = mlp()
    return trained(model, torch.optim.Adam(model.parameters(), fused=True)), (x8(),), model


@odd
def adam_fused_capturable():
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    return trained(model, optimizer), (x8(),), model


@odd
def sgd_with_cosine_schedule():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    run = trained(model, optimizer)

    def step(x):
        loss = run(x)
        schedule.step()
        return loss

    return step, (x8(),), model


@odd
def ema_by_swa_utils():
    model = mlp()
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    run = trained(model)

    def step(x):
        loss = run(x)
        ema.update_parameters(model)
        return loss

    return step, (x8(),), model, ema


@odd
def swa_average():
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model)
    run = trained(model)

    def step(x):
        loss = run(x)
        average.update_parameters(model)
        return loss

    return step, (x8(),), model, average


@odd
def ema_by_hand():
    model = mlp()
    twin = copy.deepcopy(model).requires_grad_(False)
    run = trained(model)

    def step(x):
        loss = run(x)
        with torch.no_grad():
            for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
        return loss

    return step, (x8(),), model, twin


@odd
def ema_by_load_state_dict():
    model = mlp()
    twin = copy.deepcopy(model)

    def step(x):
        mixed = {k: 0.9 * v + 0.1 * model.state_dict()[k] for k, v in twin.state_dict().items()}
        twin.load_state_dict(mixed)
        return twin(x)

    return step, (x8(),), model, twin


@odd
def grad_scaler():
    model = mlp()
    return scaled(model, torch.optim.SGD(model.parameters(), lr=0.01)), (x8(),), model


@odd
def grad_scaler_scale_only():
    model = mlp()
    scaler = torch.amp.GradScaler(CUDA)

    def step(x):
        model.zero_grad()
        with torch.autocast(CUDA, dtype=torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        return loss.detach()

    return step, (x8(),), model


@odd
def clip_by_norm():
    model = mlp()

    def step(x):
        model.zero_grad()
        model(x).square().mean().backward()
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return step, (x8(),), model


@odd
def clip_by_norm_that_raises():
    model = mlp()

    def step(x):
        model.zero_grad()
        model(x).square().mean().backward()
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)

    return step, (x8(),), model


@odd
def accumulate_every_other_step():
    model, turns = mlp(), itertools.count()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        if next(turns) % 2:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, (x8(),), model


# modules


@odd
def spectral_norm():
    model = nn.Sequential(torch.nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.ReLU())
    model = model.cuda()
    return trained(model), (x8(),), model


@odd
def weight_norm():
    model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)).cuda()
    return trained(model), (x8(),), model


@odd
def orthogonal():
    model = torch.nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)).cuda()
    return trained(model), (x8(),), model


@odd
def old_spectral_norm():
    model = torch.nn.utils.spectral_norm(nn.Linear(8, 8)).cuda()
    return trained(model), (x8(),), model


@odd
def pruned():
    model = nn.Linear(8, 8).cuda()
    torch.nn.utils.prune.l1_unstructured(model, "weight", 0.5)
    return trained(model), (x8(),), model


@odd
def lazy_linear():
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU()).cuda()
    return model, (x8(),)


@odd
def tied_weights():
    embed, out = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
    out.weight = embed.weight
    model = nn.Sequential(embed, out).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(ids):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.randint(0, 16, (4, 8), device=CUDA),), model


@odd
def data_parallel_of_one():
    model = nn.DataParallel(mlp(), device_ids=[0])
    return trained(model), (x8(),), model


@odd
def dropout_whose_p_changes():
    drop, turns = nn.Dropout(0.1), itertools.count()

    def step(x):
        drop.p = 0.1 + 0.01 * (next(turns) % 5)
        return drop(x)

    return step, (x8(),)


@odd
def dropout_with_p_zero_in_eval():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).cuda().eval()
    return model, (x8(),)


@odd
def batch_norm_momentum_none():
    model = nn.BatchNorm1d(8, momentum=None).cuda()
    return trained(model), (x8(),), model


@odd
def sync_batch_norm_alone():
    model = nn.SyncBatchNorm(8).cuda()
    return trained(model), (x8(),), model


@odd
def multihead_with_need_weights():
    model = nn.MultiheadAttention(8, 2, batch_first=True).cuda().eval()
    return lambda x: model(x, x, x), (x8(2, 4, 8),)


@odd
def transformer_decoder_training():
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    model = nn.TransformerDecoder(layer, 2).cuda()

    def step(x, memory):
        model.zero_grad()
        loss = model(x, memory).square().mean()
        loss.backward()
        return loss.detach()

    return step, (x8(2, 4, 8), x8(2, 4, 8)), model


@odd
def deepcopy_in_step():
    model = mlp()
    return lambda x: copy.deepcopy(model)(x), (x8(),)


@odd
def state_dict_cloned_in_step():
    model = mlp()

    def step(x):
        kept = {k: v.clone() for k, v in model.state_dict().items()}
        return model(x) + kept["0.bias"].sum()

    return step, (x8(),)


@odd
def requires_grad_switched_in_step():
    model = mlp()

    def step(x):
        for p in model.parameters():
            p.requires_grad_(False)
        given = x.detach().requires_grad_()
        model(given).sum().backward()
        for p in model.parameters():
            p.requires_grad_(True)
        return given.grad

    return step, (x8(),)


# kinds of tensors


@odd
def fft_of_complex():
    return lambda x: torch.fft.ifft2(torch.fft.fft2(x) * 1j).abs(), (x8(),)


@odd
def stft_round_trip():
    window = torch.hann_window(16, device=CUDA)

    def step(x):
        seen = torch.stft(x, 16, window=window, return_complex=True)
        return torch.istft(seen, 16, window=window)

    return step, (x8(2, 64),)


@odd
def complex_parameters():
    weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64, device=CUDA))

    def step(x):
        weight.grad = None
        loss = (x.to(torch.complex64) @ weight).abs().square().mean()
        loss.backward()
        return loss.detach(), weight.grad

    return step, (x8(),)


@odd
def sparse_coo_product():
    index = torch.tensor([[0, 1, 2], [2, 0, 1]], device=CUDA)
    matrix = torch.sparse_coo_tensor(index, torch.ones(3, device=CUDA), (8, 8)).coalesce()
    return lambda x: torch.sparse.mm(matrix, x), (x8(),)


@odd
def sparse_csr_product():
    dense = torch.eye(8, device=CUDA)
    matrix = dense.to_sparse_csr()
    return lambda x: matrix @ x, (x8(),)


@odd
def sparse_embedding_gradient():
    model = nn.Embedding(16, 8, sparse=True).cuda()

    def step(ids):
        model.zero_grad()
        model(ids).sum().backward()
        return model.weight.grad.to_dense()

    return step, (torch.randint(0, 16, (8,), device=CUDA),)


@odd
def masked_tensor():
    from torch.masked import masked_tensor as make

    return lambda x, m: make(x, m).sum(1).get_data(), (x8(), torch.rand(8, 8, device=CUDA) > 0.5)


class Tagged(torch.Tensor):
    """A subclass whose functions are torch's."""


@odd
def subclass_without_code():
    return lambda x: (x.as_subclass(Tagged) * 2).as_subclass(torch.Tensor), (x8(),)


class Reading(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.mul:
            float(args[0].as_subclass(torch.Tensor).sum())
        return out


@odd
def subclass_that_reads():
    return lambda x: (x.as_subclass(Reading) * 2).as_subclass(torch.Tensor), (x8(),)


@odd
def float8_cast():
    return lambda x: x.to(torch.float8_e4m3fn).to(torch.float32), (x8(),)


@odd
def int4_shifts():
    ids = torch.randint(0, 255, (8, 8), device=CUDA, dtype=torch.uint8)
    return lambda x: (ids & 15).float() * x + (ids >> 4).float(), (x8(),)


@odd
def inplace_on_views():
    def step(x):
        y = x * 1.0
        y[:, 0].add_(1)
        y.view(-1)[::3].mul_(2)
        y.T[1].zero_()
        return y

    return step, (x8(),)


@odd
def resize_in_step():
    buffer = torch.empty(0, device=CUDA)
    return lambda x: torch.mul(x, 2, out=buffer), (x8(),)


@odd
def as_strided_window():
    return lambda x: x.contiguous().as_strided((6, 3), (1, 1)).sum(1), (x8(64),)


@odd
def index_by_integers():
    at = torch.tensor([0, 3, 5], device=CUDA)
    return lambda x: x[at], (x8(),)


@odd
def index_put_accumulating():
    at = torch.tensor([0, 3, 3], device=CUDA)
    return lambda x: x.clone().index_put_((at,), x[:3], accumulate=True), (x8(),)


@odd
def index_by_mask():
    return lambda x: x[x > 0].sum(), (x8(),)


@odd
def mask_assigned_number():
    def step(x):
        y = x.clone()
        y[y > 0] = 0.0
        return y

    return step, (x8(),)


@odd
def embedding_bag_with_offsets():
    model = nn.EmbeddingBag(16, 8, mode="sum").cuda()
    ids = torch.randint(0, 16, (12,), device=CUDA)
    offsets = torch.tensor([0, 4, 8], device=CUDA)
    return lambda x: model(ids, offsets) + x[:3], (x8(),)


@odd
def searchsorted_and_bucketize():
    edges = torch.linspace(-2, 2, 9, device=CUDA)
    return lambda x: torch.bucketize(x, edges) + torch.searchsorted(edges, x), (x8(),)


@odd
def topk_and_gather():
    def step(x):
        values, at = x.topk(3, dim=1)
        return values, x.gather(1, at.flip(1)), x.sort(dim=1).indices

    return step, (x8(),)


@odd
def cdist_and_median():
    return lambda x: (torch.cdist(x, x), x.median(dim=1).values, x.median()), (x8(),)


@odd
def unique_and_counts():
    return lambda x: torch.unique(x.round(), return_counts=True), (x8(),)


@odd
def cholesky_solve():
    def step(x):
        a = x @ x.T + 8 * torch.eye(8, device=CUDA)
        return torch.cholesky_solve(x, torch.linalg.cholesky_ex(a).L)

    return step, (x8(),)


@odd
def svd_of_small():
    return lambda x: torch.linalg.svd(x).S, (x8(),)


@odd
def einsum_and_tensordot():
    return lambda x: torch.einsum("ij,jk->ik", x, x) + torch.tensordot(x, x, 1), (x8(),)


# what the host does


@odd
def python_random():
    return lambda x: x * random.random(), (x8(),)


@odd
def numpy_round_trip():
    return lambda x: torch.from_numpy(np.sin(x.cpu().numpy())).cuda(), (x8(),)


@odd
def numpy_constant():
    scale = np.float32(0.5)
    return lambda x: x * scale, (x8(),)


@odd
def own_generator():
    generator = torch.Generator(device=CUDA).manual_seed(1)
    return lambda x: x + torch.randn(8, 8, device=CUDA, generator=generator), (x8(),)


@odd
def host_generator():
    generator = torch.Generator().manual_seed(1)
    return lambda x: x * float(torch.rand((), generator=generator)), (x8(),)


@odd
def thread_in_forward():
    def step(x):
        out = []
        worker = threading.Thread(target=lambda: out.append(x * 2))
        worker.start()
        worker.join()
        return out[0] + 1

    return step, (x8(),)


@odd
def caught_sync():
    def step(x):
        try:
            scale = float(x.sum())
        except RuntimeError:
            scale = 1.0
        return x * scale

    return step, (x8(),)


@odd
def asks_whether_captured():
    def step(x):
        if torch.cuda.is_current_stream_capturing():
            return x * 2
        return x * float(x.sum() * 0 + 2)

    return step, (x8(),)


@odd
def asserts_on_device():
    def step(x):
        torch._assert_async((x.abs() < 1e6).all())
        return x * 2

    return step, (x8(),)


@odd
def asserts_on_host():
    def step(x):
        assert torch.isfinite(x).all()
        return x * 2

    return step, (x8(),)


@odd
def memory_asked():
    return lambda x: x * (1 if torch.cuda.memory_allocated() >= 0 else 2), (x8(),)


@odd
def empty_cache_in_step():
    def step(x):
        torch.cuda.empty_cache()
        return x * 2

    return step, (x8(),)


@odd
def nvtx_and_record_function():
    def step(x):
        with torch.profiler.record_function("mine"):
            return x * 2

    return step, (x8(),)


@odd
def side_stream_forked_and_joined():
    side = torch.cuda.Stream()

    def step(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        torch.cuda.current_stream().wait_stream(side)
        return y + 1

    return step, (x8(),)


@odd
def pinned_copy_to_host():
    host = torch.empty(8, 8).pin_memory()

    def step(x):
        host.copy_(x * 2, non_blocking=True)
        return x + 1

    return step, (x8(),)


@odd
def list_that_grows():
    kept = []

    def step(x):
        kept.append(x.sum())
        return x * 2

    return step, (x8(),)


@odd
def deque_of_losses():
    kept = collections.deque(maxlen=2)

    def step(x):
        kept.append((x * 2).mean())
        return torch.stack(list(kept)).mean()

    return step, (x8(),)


@odd
def state_rebound():
    state = {"h": torch.zeros(8, 8, device=CUDA)}

    def step(x):
        state["h"] = state["h"] * 0.5 + x
        return state["h"]

    return step, (x8(),)


@odd
def state_in_place():
    state = torch.zeros(8, 8, device=CUDA)
    return lambda x: state.mul_(0.5).add_(x), (x8(),), state


@odd
def counter_on_host():
    turns = itertools.count(1)
    return lambda x: x * next(turns), (x8(),)


@odd
def counter_on_device():
    turns = torch.zeros((), device=CUDA)
    return lambda x: x * turns.add_(1), (x8(),), turns


@odd
def cached_by_lru():
    @functools.lru_cache(maxsize=2)
    def table(dtype):
        return torch.arange(8, device=CUDA).to(dtype)

    return lambda x: x + table(x.dtype), (x8(),)


# what goes in and comes out


@dataclasses.dataclass
class Batch:
    data: torch.Tensor
    scale: float = 2.0


Pair = collections.namedtuple("Pair", ["left", "right"])


@odd
def dataclass_made_inside():
    return lambda x: Batch(x * 2), (x8(),)


@odd
def namedtuple_out():
    return lambda x: Pair(x * 2, right=x + 1), (x8(),)


@odd
def generator_out():
    return lambda x: sum(part * 2 for part in x.unbind()), (x8(),)


@odd
def none_and_numbers_out():
    return lambda x: {"y": x * 2, "n": None, "k": 3, "shape": x.shape}, (x8(),)


@odd
def input_returned():
    return lambda x: (x, x.t(), x * 2), (x8(),)


@odd
def input_written():
    return lambda x: x.mul_(2), (x8(),)


# compilers, operators of one's own


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
def stream_priority_and_events():
    ready = torch.cuda.Event()

    def step(x):
        y = x * 2
        ready.record()
        ready.wait()
        return y + 1

    return step, (x8(),)


@odd
def event_timed():
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def step(x):
        begun.record()
        y = x * 2
        ended.record()
        return y

    return step, (x8(),)


@odd
def event_asked():
    done = torch.cuda.Event()

    def step(x):
        y = x * 2
        done.record()
        return y if done.query() else y + 0

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
def python_number_from_shape():
    return lambda x: x / x.shape[0] ** 0.5 + torch.full((x.shape[1],), x.numel(), device=CUDA), (
        x8(),
    )


@odd
def tensor_as_default_argument():
    two = torch.tensor(2.0)

    def step(x, scale=two):
        return x * scale

    return step, (x8(),)


@odd
def chunks_by_a_list_on_the_host():
    return lambda x: [part.sum() for part in x.split([3, 5])], (x8(),)


@odd
def index_by_a_list():
    return lambda x: x[[0, 2, 4]], (x8(),)


@odd
def where_with_one_argument():
    return lambda x: torch.where(x > 0)[0], (x8(),)


@odd
def nonzero_of_fixed_size():
    return lambda x: torch.nonzero_static(x > 0, size=8), (x8(),)


@odd
def isin_few():
    few = torch.tensor([1, 2], device=CUDA)
    return lambda x: torch.isin(x.round().long(), few), (x8(),)


@odd
def histogram_of_integers():
    return lambda x: torch.bincount(x.abs().long().flatten(), minlength=8), (x8(),)


@odd
def weights_loaded_in_step():
    model = mlp()
    kept = {k: v.clone() for k, v in model.state_dict().items()}

    def step(x):
        model.load_state_dict(kept)
        return model(x)

    return step, (x8(),)


@odd
def weights_assigned_in_step():
    model = mlp()
    kept = {k: v.clone() for k, v in model.state_dict().items()}

    def step(x):
        model.load_state_dict(kept, assign=True)
        return model(x)

    return step, (x8(),)


@odd
def parameter_data_replaced():
    weight = nn.Parameter(torch.ones(8, 8, device=CUDA))

    def step(x):
        weight.data = weight.data * 0.5
        return x @ weight

    return step, (x8(),)


@odd
def bernoulli_and_poisson():
    return lambda x: torch.bernoulli(x.sigmoid()) + torch.poisson(x.exp()), (x8(),)


@odd
def distributions_sampled():
    def step(x):
        normal = torch.distributions.Normal(x, 1.0, validate_args=False)
        return normal.rsample(), normal.log_prob(x)

    return step, (x8(),)


@odd
def categorical_sampled():
    def step(x):
        return torch.distributions.Categorical(logits=x, validate_args=False).sample()

    return step, (x8(),)


@odd
def gumbel_softmax_hard():
    return lambda x: F.gumbel_softmax(x, hard=True), (x8(),)


@odd
def ctc_loss_on_device():
    targets = torch.randint(1, 8, (2, 3), device=CUDA)
    sizes = torch.full((2,), 8, device=CUDA), torch.full((2,), 3, device=CUDA)

    def step(x):
        return F.ctc_loss(x.log_softmax(2), targets, *sizes)

    return step, (x8(8, 2, 8),)


@odd
def cross_entropy_with_ignored():
    labels = torch.tensor([0, 1, -100, 3, 4, 5, -100, 7], device=CUDA)
    return lambda x: F.cross_entropy(x, labels), (x8(),)


@odd
def interpolate_by_size_of_input():
    return lambda x: F.interpolate(x[None, None], size=(x.shape[0] * 2, 5), mode="bicubic"), (x8(),)


@odd
def lstm_with_dropout_training():
    model = nn.LSTM(8, 8, 2, dropout=0.2).cuda()

    def step(x):
        model.zero_grad()
        loss = model(x)[0].square().mean()
        loss.backward()
        return loss.detach()

    return step, (x8(4, 2, 8),), model


@odd
def padded_sequences():
    lengths = torch.tensor([4, 2])

    def step(x):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0]

    return step, (x8(2, 4, 8),)


@odd
def wrapper_made_in_step():
    model = mlp()

    def step(x):
        return (Wrapped(x) * 2 + 1).inner + model(x)

    return step, (x8(),)


@odd
def wrapper_as_parameter():
    weight = nn.Parameter(Wrapped(x8()), requires_grad=False)
    return lambda x: F.linear(x, weight).inner + 1, (x8(),)


class Wrapped(torch.Tensor):
    """Holds a tensor, and says so to nobody."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        from torch.utils._pytree import tree_map

        args, kwargs = tree_map(lambda t: t.inner if isinstance(t, Wrapped) else t, (args, kwargs))
        result = func(*args, **(kwargs or {}))
        return tree_map(lambda t: Wrapped(t) if isinstance(t, torch.Tensor) else t, result)


@odd
def subclass_that_counts():
    class Counting(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            Counting.calls += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    model = mlp()
    return lambda x: model(x).relu() + 1, (x8().as_subclass(Counting),)


@odd
def storage_freed_between_steps():
    weight = x8()
    shard = weight.clone()

    def step(x):
        weight.untyped_storage().resize_(weight.numel() * 4)
        weight.copy_(shard)
        y = x @ weight
        weight.untyped_storage().resize_(0)
        return y

    return step, (x8(),)


@odd
def work_in_a_pool_of_threads():
    from concurrent.futures import ThreadPoolExecutor

    pool, model = ThreadPoolExecutor(1), mlp()
    return lambda x: x * 2 + pool.submit(model, x).result(), (x8(),)


@odd
def lazy_batch_norm():
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d()).cuda().eval(), (x8(),)


@odd
def jagged_by_offsets():
    offsets = torch.tensor([0, 3, 8], device=CUDA)

    def step(x):
        return (torch.nested.nested_tensor_from_jagged(x, offsets) * 2).values()

    return step, (x8(),)


@odd
def ensemble_by_vmap():
    from torch.func import functional_call, stack_module_state, vmap

    parameters, buffers = stack_module_state([mlp() for _ in range(3)])
    base = mlp().to("meta")

    def one(parameters, buffers, x):
        return functional_call(base, (parameters, buffers), (x,))

    return lambda x: vmap(one, (0, 0, None))(parameters, buffers, x), (x8(),)


@odd
def grad_scaler_of_a_fused_optimizer():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), fused=True, capturable=True)
    return scaled(model, optimizer), (x8(),), model


@odd
def muon():
    model = nn.Linear(8, 8, bias=False).cuda()
    return trained(model, torch.optim.Muon(model.parameters(), 0.01)), (x8(),), model


@odd
def backward_twice():
    model = mlp()

    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return loss.detach()

    return step, (x8(),), model


@odd
def fake_quantized():
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    quantize = FakeQuantize(MovingAverageMinMaxObserver, 0, 255).cuda()
    return quantize, (x8(),)


@odd
def coroutine():
    import asyncio

    model = mlp()

    async def forward(x):
        await asyncio.sleep(0)
        return model(x)

    return lambda x: asyncio.run(forward(x)), (x8(),)


@odd
def inference_mode_in_step():
    model = mlp()

    def step(x):
        with torch.inference_mode():
            return model(x) + 1

    return step, (x8(),)


@odd
def weights_held_on_the_default_stream():
    model = nn.utils.spectral_norm(nn.Linear(8, 8)).cuda()
    model(x8())  # leaves a weight that holds the gradient's accumulation
    return trained(model), (x8(),), model


# Each device


@odd
def ctc_with_lengths_on_the_host():
    model = nn.Linear(8, 5).cuda()
    targets = torch.randint(1, 5, (2, 3), device=CUDA)
    lengths = torch.tensor([12, 10]), torch.tensor([3, 2])

    def loss(out):
        return F.ctc_loss(out.log_softmax(-1), targets, *lengths)

    return trained(model, loss=loss), (x8(12, 2, 8),), model


@odd
def ctc_with_lengths_on_the_device():
    model = nn.Linear(8, 5).cuda()
    targets = torch.randint(1, 5, (2, 3), device=CUDA)
    lengths = torch.tensor([12, 10], device=CUDA), torch.tensor([3, 2], device=CUDA)

    def loss(out):
        return F.ctc_loss(out.log_softmax(-1), targets, *lengths)

    return trained(model, loss=loss), (x8(12, 2, 8),), model


@odd
def mask_resized_from_nothing():
    table = nn.Embedding(30, 4).cuda()

    def step(tokens):
        mask = table.weight.data.new().resize_((30, 1)).bernoulli_(0.5)
        kept = F.embedding(tokens, mask * table.weight)
        if kept.sum() > 1e9:
            kept = kept + 1
        return kept.square(), mask

    return step, (torch.randint(0, 29, (5, 2), device=CUDA),), table


@odd
def recurrent_before_a_read():
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(12)] + [nn.LSTM(8, 8)]).cuda()

    def step(x):
        for layer in layers[:-1]:
            x = layer(x)
        out, _ = layers[-1](x)
        if out.sum() > 1e9:
            out = out + 1
        for layer in layers[:-1]:
            out = layer(out)
        return out

    return step, (x8(3, 2, 8),), layers


@odd
def batch_norms_before_a_read():
    layers = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)) for _ in range(6))
    )
    layers.cuda().to(memory_format=torch.channels_last)

    def step(x):
        out = layers(x.to(memory_format=torch.channels_last))
        if out.sum() > 1e9:
            out = out + 1
        out.square().mean().backward()
        return out.detach()

    return step, (x8(4, 8, 32, 32),), layers


@odd
def host_generator_state_kept():
    kept = SimpleNamespace(state=None)

    def step(x):
        kept.state = torch.get_rng_state()
        return F.dropout(x)

    return step, (x8(),)


def adversarial(before_generator: Callable[..., None]) -> tuple[Any, ...]:
    """A generator's loss reaches the discriminator, whose gradients are zeroed after it."""
    makes, judges = mlp(), mlp()
    first = torch.optim.SGD(makes.parameters(), lr=0.1)
    second = torch.optim.SGD(judges.parameters(), lr=0.1)

    def step(x):
        first.zero_grad()
        before_generator(second)
        made = makes(torch.randn_like(x))
        judges(made).mean().backward()
        first.step()
        second.zero_grad()
        (judges(x).mean() - judges(made.detach()).mean()).backward()
        second.step()

    return step, (x8(),), nn.ModuleList([makes, judges])


@odd
def gan_with_gradients_left():
    return adversarial(lambda second: None)


@odd
def gan_with_gradients_zeroed():
    return adversarial(lambda second: second.zero_grad())


def diagnosed(name: str, *, device: str) -> dict[str, Any]:
    import graphdoctor

    def build() -> tuple[Any, ...]:
        step, inputs, *_ = STEPS[name]()
        return step, inputs

    try:
        report = graphdoctor.analyze(build, device=device, strategies=())
    except Exception as error:
        return {"step": name, "raised": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
    return {
        "step": name,
        "verdict": report.verdict,
        "reason": report.reason,
        "findings": [
            f"{each.rule} {each.location.line if each.location else ''}".strip()
            for each in report.findings
            if each.effect != "replay-is-slow"
        ],
        "limits": list(report.limits),
        "regions": [
            f"{each.scope} {each.status} {each.verification.status if each.verification else ''}".strip()
            for each in report.captures
        ],
    }


def on_raw(name: str) -> dict[str, Any]:
    from raw_capture import attempt

    step, inputs, *state = STEPS[name]()
    held = nn.Module()
    for place, each in enumerate(state):
        if isinstance(each, nn.Module):
            held.add_module(f"m{place}", each)
        else:
            held.register_buffer(f"b{place}", each)

    def fresh() -> dict[str, Any]:
        return {f"x{place}": again(value) for place, value in enumerate(inputs)}

    target = SimpleNamespace(
        state={"model": held}, inputs=fresh, step=lambda **given: step(*given.values())
    )
    found = attempt(target)
    return {"step": name, **{key: found.get(key) for key in ("raw", "place", "error")}}


def again(value: torch.Tensor) -> torch.Tensor:
    """Other values of the same kind."""
    if value.is_floating_point():
        return torch.randn_like(value)
    return value.flatten()[torch.randperm(value.numel(), device=value.device)].view_as(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("emulated", "cuda", "raw"), required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=8)
    args = parser.parse_args()
    ask = on_raw if args.device == "raw" else functools.partial(diagnosed, device=args.device)
    names = [name for name in STEPS if not args.only or name in args.only.split(",")]
    warnings.simplefilter("ignore")
    if args.device != "emulated":  # what one step does to its process, another must not see
        with ProcessPoolExecutor(
            args.jobs, mp_context=get_context("spawn"), max_tasks_per_child=None
        ) as pool:
            waiting = {name: pool.submit(ask, name) for name in names}
            lines = [result_of(name, each) for name, each in waiting.items()]
    else:
        lines = [ask(name) for name in names]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    if args.json:
        args.json.write_text(text)
    else:
        sys.stdout.write(text)


def result_of(name: str, waiting: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = waiting.result(timeout=100)
    except Exception as error:
        return {"step": name, "crash": f"{type(error).__name__}: {error}"[:200]}
    return found


if __name__ == "__main__":
    main()
