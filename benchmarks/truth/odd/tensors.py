"""Steps on tensors of other kinds: subclasses, sparse, nested, complex."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from odd.step import CUDA, mlp, odd, x8


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
def jagged_by_offsets():
    offsets = torch.tensor([0, 3, 8], device=CUDA)

    def step(x):
        return (torch.nested.nested_tensor_from_jagged(x, offsets) * 2).values()

    return step, (x8(),)
