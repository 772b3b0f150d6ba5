"""Sparse factors and fake quantization wait inside their CUDA kernels' wrappers, which no CPU kernel shows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.ao.quantization as quantization
from torch import nn

import graphdoctor
from tests.support.diagnosing import assert_followed, diagnosed


def adjacency() -> torch.Tensor:
    return torch.eye(8).roll(1, 0).to_sparse().coalesce().cuda()


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sparse, transposed, dense):
        ctx.transposed = transposed
        return sparse @ dense

    @staticmethod
    def backward(ctx, grad):
        return None, None, ctx.transposed @ grad


def graph_convolution(*, both: bool) -> object:
    layer = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    edges = adjacency()
    back = edges.t().coalesce()

    def step(x):
        optimizer.zero_grad()
        hidden = Product.apply(edges, back, layer(x)) if both else edges @ layer(x)
        loss = hidden.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    state = [layer, optimizer, edges, back]
    return SimpleNamespace(step=step, inputs=(torch.randn(8, 4, device="cuda"),), state=state)


def made_in_the_step() -> object:
    edges = torch.randint(0, 8, (2, 5), device="cuda")
    weights = torch.randn(5, device="cuda")

    def step(x):
        return torch.sparse.mm(torch.sparse_coo_tensor(edges, weights, (8, 8)), x)

    return step, (torch.randn(8, 4, device="cuda"),)


def made_before_the_step() -> object:
    made = adjacency()
    return lambda x: torch.sparse.mm(made, x), (torch.randn(8, 4, device="cuda"),)


def quantized_weights(*, as_float: bool) -> object:
    scale = torch.rand(4, device="cuda") + 0.1
    zeros = torch.zeros(4, dtype=torch.float32 if as_float else torch.int32, device="cuda")

    def step(x):
        return torch.fake_quantize_per_channel_affine(x, scale, zeros, 0, -8, 7)

    return step, (torch.randn(4, 4, device="cuda"),)


def quantization_aware(*, per_channel: bool) -> object:
    weights = quantization.default_fused_per_channel_wt_fake_quant
    if not per_channel:
        weights = quantization.default_fused_wt_fake_quant
    layer = nn.Linear(4, 4)
    layer.qconfig = quantization.QConfig(quantization.default_fused_act_fake_quant, weights)  # type: ignore[assignment]
    model = quantization.prepare_qat(nn.Sequential(layer).train()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return SimpleNamespace(
        step=step, inputs=(torch.randn(8, 4, device="cuda"),), state=[model, optimizer]
    )


def by_columns(*, as_rows: bool) -> object:
    edges = torch.eye(8).roll(1, 0).to_sparse_csr().cuda()
    transposed = edges.t().to_sparse_csr() if as_rows else edges.t()
    return lambda x: transposed @ x, (torch.randn(8, 4, device="cuda"),)


PAIRS = [
    (
        lambda: by_columns(as_rows=False),
        "Create `transposed` before the step, compressed by rows: transposed.to_sparse_csr()",
        lambda: by_columns(as_rows=True),
    ),
    (
        lambda: graph_convolution(both=False),
        "Create `edges` before the step, coalesced: edges.coalesce(), and edges.t().coalesce()",
        lambda: graph_convolution(both=True),
    ),
    (made_in_the_step, "Create the tensor before the step, coalesced", made_before_the_step),
    (
        lambda: quantized_weights(as_float=False),
        "zero_point.float()",
        lambda: quantized_weights(as_float=True),
    ),
    (
        lambda: quantization_aware(per_channel=True),
        "default_fused_wt_fake_quant",
        lambda: quantization_aware(per_channel=False),
    ),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("bad", "said", "good"), PAIRS, ids=[said for _, said, _ in PAIRS])
def test_what_waits_is_found_and_the_fix_removes_it(bad, said: str, good) -> None:
    assert_followed("GD114", bad, said, good)


def test_a_product_of_two_sparse_matrices_waits_for_the_size_of_its_result() -> None:
    edges = torch.eye(8).to_sparse().coalesce()
    (found,) = diagnosed(lambda: (lambda: edges.cuda() @ edges.cuda(), ())).findings[-1:]
    assert found.rule == "GD114"
    assert "how many elements its sparse result has" in found.message


@pytest.mark.parametrize(
    ("work", "verdict"),
    [
        (lambda sparse, x: sparse @ x, "safe"),
        (lambda sparse, x: x + sparse * 2, "safe"),
        (lambda sparse, x: x.sparse_mask(sparse).to_dense(), "safe"),
        (lambda sparse, x: (sparse * x).to_dense(), "safe"),
        (lambda sparse, x: (sparse * sparse).to_dense() + x, "unknown"),
        (lambda sparse, x: sparse.to_sparse_csr() @ sparse.to_sparse_csr() @ x, "unknown"),
    ],
)
def test_what_no_table_knows_of_sparse_operators_is_no_proof(work, verdict: str) -> None:
    def described() -> object:
        edges = adjacency()
        return lambda x: work(edges, x), (torch.randn(8, 8, device="cuda"),)

    report = graphdoctor.analyze(described, device="emulated", strategies=())
    assert report.verdict == verdict, report.reason
