"""Sparse factors and fake quantization wait inside their CUDA kernels' wrappers, which no CPU kernel shows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.ao.quantization as quantization
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.diagnosing import assert_followed, diagnosed


def adjacency() -> torch.Tensor:
    return torch.eye(8).roll(1, 0).to_sparse().coalesce().cuda()


def graph_convolution(*, gathered: bool) -> object:
    layer = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    edges = adjacency()

    def step(x):
        optimizer.zero_grad()
        support = layer(x)
        if gathered:
            rows, cols = edges._indices()
            terms = edges._values()[:, None] * support.index_select(0, cols)
            hidden = support.new_zeros(edges.size(0), support.size(1)).index_add(0, rows, terms)
        else:
            hidden = torch.spmm(edges, support)
        loss = hidden.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    state = [layer, optimizer, edges]
    return SimpleNamespace(step=step, inputs=(torch.randn(8, 4, device="cuda"),), state=state)


class Spmm(torch.autograd.Function):
    """As that of pyGAT."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.a = a
        return torch.matmul(a, b)

    @staticmethod
    def backward(ctx, grad):
        a = ctx.a
        return None, a.t().matmul(grad)


class GatheredSpmm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.a = a
        rows, cols = a._indices()
        terms = a._values()[:, None] * b.index_select(0, cols)
        return b.new_zeros(a.size(0), b.size(1)).index_add(0, rows, terms)

    @staticmethod
    def backward(ctx, grad):
        a = ctx.a
        cols, rows = a._indices()
        terms = a._values()[:, None] * grad.index_select(0, cols)
        return None, grad.new_zeros(a.size(1), grad.size(1)).index_add(0, rows, terms)


def own_function(*, gathered: bool) -> object:
    layer = nn.Linear(4, 4).cuda()
    edges = adjacency().t()

    def step(x):
        layer.zero_grad()
        loss = (GatheredSpmm if gathered else Spmm).apply(edges, layer(x)).square().mean()
        loss.backward()
        return loss

    state = [layer, edges]
    return SimpleNamespace(step=step, inputs=(torch.randn(8, 4, device="cuda"),), state=state)


def made_in_the_step(*, gathered: bool) -> object:
    edges = torch.randint(0, 8, (2, 5), device="cuda")
    weights = torch.randn(5, device="cuda")

    def step(x):
        if not gathered:
            return torch.sparse.mm(torch.sparse_coo_tensor(edges, weights, (8, 8)), x)
        rows, cols = edges
        terms = weights[:, None] * x.index_select(0, cols)
        return x.new_zeros(8, x.size(1)).index_add(0, rows, terms)

    return step, (torch.randn(8, 4, device="cuda"),)


class Propagation(nn.Module):
    """Rows of features times a matrix that is not coalesced."""

    def __init__(self, *, gathered: bool) -> None:
        super().__init__()
        self.gathered = gathered
        self.register_buffer("edges", adjacency().t())

    def forward(self, x):
        if not self.gathered:
            return x @ self.edges
        rows, cols = self.edges._indices()
        terms = x.index_select(1, rows) * self.edges._values()
        return x.new_zeros(x.size(0), self.edges.size(1)).index_add(1, cols, terms)


def sparse_on_the_right(*, gathered: bool) -> object:
    return Propagation(gathered=gathered), (torch.randn(4, 8, device="cuda"),)


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


def by_columns(*, gathered: bool) -> object:
    transposed = torch.eye(8).roll(1, 0).to_sparse_csr().cuda().t()
    if not gathered:
        return lambda x: transposed @ x, (torch.randn(8, 4, device="cuda"),)
    transposed = transposed.to_sparse_coo()

    def step(x):
        rows, cols = transposed._indices()
        terms = transposed._values()[:, None] * x.index_select(0, cols)
        return x.new_zeros(transposed.size(0), x.size(1)).index_add(0, rows, terms)

    return step, (torch.randn(8, 4, device="cuda"),)


PAIRS = [
    (
        lambda: by_columns(gathered=False),
        "Before the step, set `transposed = transposed.to_sparse_coo()`.",
        lambda: by_columns(gathered=True),
    ),
    (
        lambda: graph_convolution(gathered=False),
        """Compute the product with `index_add`:

    rows, cols = edges._indices()
    terms = edges._values()[:, None] * support.index_select(0, cols)
    hidden = support.new_zeros(edges.size(0), support.size(1))
    hidden = hidden.index_add(0, rows, terms)""",
        lambda: graph_convolution(gathered=True),
    ),
    (
        lambda: own_function(gathered=False),
        """Compute the product with `index_add`:

    rows, cols = a._indices()
    terms = a._values()[:, None] * b.index_select(0, cols)
    product = b.new_zeros(a.size(0), b.size(1))
    return product.index_add(0, rows, terms)""",
        lambda: own_function(gathered=True),
    ),
    (
        lambda: made_in_the_step(gathered=False),
        """`_values()` has no gradient: if `sparse` is made of learned values, use the tensor of these values""",
        lambda: made_in_the_step(gathered=True),
    ),
    (
        lambda: sparse_on_the_right(gathered=False),
        """
    product = x.new_zeros(x.size(0), self.edges.size(1))
    return product.index_add(1, cols, terms)""",
        lambda: sparse_on_the_right(gathered=True),
    ),
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


@pytest.mark.parametrize("product", [made_in_the_step, sparse_on_the_right, by_columns])
def test_the_product_of_the_fix_has_the_values_of_the_sparse_one(product) -> None:
    def both() -> object:
        torch.manual_seed(0)
        before, inputs = product(gathered=False)
        torch.manual_seed(0)
        after, _ = product(gathered=True)
        return lambda x: torch.stack([before(x), after(x)]), inputs

    with EmulatedDevice():
        step, inputs = both()
        one, other = step(*inputs)
        torch.testing.assert_close(one, other)


def test_the_fix_of_a_transposed_factor_exchanges_its_indices() -> None:
    def described() -> object:
        edges = adjacency()

        def step(x):
            return edges.t().matmul(x)

        return step, (torch.randn(8, 4, device="cuda"),)

    (code,) = [one.fix_code for one in diagnosed(described).findings if one.rule == "GD114"]
    assert code[0] == "cols, rows = edges._indices()"
    assert code[2] == "product = x.new_zeros(edges.size(1), x.size(1))"


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
