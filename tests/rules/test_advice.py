"""The fix that is printed for a place, taken at its word: the step that follows it has no finding left.

Each pair is code as people write it, and the same code with the fix in it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from graphdoctor.rules.causes.edits import with_causality
from graphdoctor.values.locations import Location
from tests.support.diagnosing import assert_followed, cuda, diagnosed
from tests.support.torch_versions import STORES_NUMBERS_BY_FILLING, WHY_FILLING

Example = Callable[[], object]


def indices(limit: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, limit, shape, device="cuda")


def classes() -> object:
    return lambda x: nn.functional.one_hot(x).float(), (indices(3, 8),)


def classes_given() -> object:
    return lambda x: nn.functional.one_hot(x, 3).float(), (indices(3, 8),)


def encoded(*, is_causal: bool | None) -> object:
    layer = nn.TransformerEncoderLayer(4, 1, 4, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).cuda()
    mask = nn.Transformer.generate_square_subsequent_mask(3, device="cuda")

    def step(x):
        return encoder(x, mask, is_causal=is_causal)

    return step, (cuda(2, 3, 4),)


def layers(mask: torch.Tensor, *, decoding: bool = False) -> object:
    """Two layers that mask their attention, and do not say how."""
    if decoding:
        layer = nn.TransformerDecoderLayer(4, 1, 4, dropout=0.0, batch_first=True)
        decoder = nn.TransformerDecoder(layer, 2).cuda()
        return lambda x: decoder(x, x, tgt_mask=mask), (cuda(2, 3, 4),)
    layer = nn.TransformerEncoderLayer(4, 1, 4, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda()
    return lambda x: encoder(x, mask) * 2, (cuda(2, 3, 4),)


def packed() -> object:
    rnn, lengths = nn.GRU(4, 4, batch_first=True).cuda(), torch.tensor([3, 2], device="cuda")

    def step(x):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(rnn(packed)[0], batch_first=True)[0]

    return step, (cuda(2, 3, 4),)


def unpacked() -> object:
    rnn, lengths = nn.GRU(4, 4, batch_first=True).cuda(), torch.tensor([3, 2], device="cuda")

    def step(x):
        mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        out = rnn(x)[0]
        last = out.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, out.shape[2]))
        return out * mask[..., None], last

    return step, (cuda(2, 3, 4),)


def row() -> object:
    def step(x, i):
        found = x[i]
        return found * 2

    return step, (cuda(8, 4), indices(8))


def row_on_device() -> object:
    return lambda x, i: x.index_select(0, i.view(1)) * 2, (cuda(8, 4), indices(8))


def asserted() -> object:
    def step(x):
        assert (x * 0 == 0).all(), "not finite"
        return x * 2

    return step, (cuda(8, 4),)


def raised() -> object:
    def step(x):
        if torch.isnan(x).any():
            raise ValueError("NaN")
        return x * 2

    return step, (cuda(8, 4),)


def ended() -> object:
    def step(x):
        loss = x.square().mean()
        if not math.isfinite(loss.item()):
            print("loss is", loss)
            sys.exit(1)
        return loss * 2

    return step, (cuda(8, 4),)


def asserted_on_device() -> object:
    def step(x):
        torch._assert_async((x * 0 == 0).all())
        return x * 2

    return step, (cuda(8, 4),)


def asserted_not() -> object:
    def step(x):
        assert not torch.isnan(x).any()
        return x * 2

    return step, (cuda(8, 4),)


def asserted_not_on_device() -> object:
    def step(x):
        torch._assert_async(torch.logical_not(torch.isnan(x).any()))
        return x * 2

    return step, (cuda(8, 4),)


class Edges(torch.nn.Module):
    """A graph as a dense matrix, which no step changes."""

    def __init__(self, *, once: bool) -> None:
        super().__init__()
        self.register_buffer("adj", torch.eye(8, device="cuda").roll(1, 0))
        self.edge = self.adj.nonzero().t() if once else None

    def forward(self, x):
        edge = self.adj.nonzero().t() if self.edge is None else self.edge
        return x.index_select(0, edge[0]) + x.index_select(0, edge[1])


def edges_in_the_step() -> object:
    return Edges(once=False), (cuda(8, 4),)


def edges_before_the_step() -> object:
    return Edges(once=True), (cuda(8, 4),)


def until_small() -> object:
    def step(x):
        while x.abs().max() > 0.5:
            x = x * 0.5
        return x

    return step, (cuda(8, 4),)


def rounds() -> object:
    def step(x):
        for _ in range(4):
            x = torch.where(x.abs().max() > 0.5, x * 0.5, x)
        return x

    return step, (cuda(8, 4),)


def compared() -> object:
    def step(x):
        same = torch.allclose(x, x + 1)
        return x * 2, same

    return step, (cuda(8, 4),)


def compared_on_device() -> object:
    return lambda x: (x * 2, torch.isclose(x, x + 1).all()), (cuda(8, 4),)


def variance_checked() -> object:
    def step(x, target, spread):
        return nn.functional.gaussian_nll_loss(x, target, spread.exp())

    return step, (cuda(8), cuda(8), cuda(8))


def variance_written_out() -> object:
    def step(x, target, spread):
        var = spread.exp()
        return (0.5 * (var.log() + (x - target) ** 2 / var)).mean()

    return step, (cuda(8), cuda(8), cuda(8))


def covariance() -> object:
    return lambda x: torch.cov(x), (cuda(4, 8),)


def covariance_written_out() -> object:
    def step(x):
        x = x - x.mean(1, keepdim=True)
        return x @ x.T / (x.shape[1] - 1)

    return step, (cuda(4, 8),)


def last_by_list() -> object:
    return lambda x: x[:, [-1]], (cuda(4, 8),)


def last_by_slice() -> object:
    return lambda x: x[:, -1:] * 1, (cuda(4, 8),)


def chosen_by_rows_of_cpu() -> object:
    """As a C51 takes the distribution of each action."""
    return lambda x, column: x[torch.arange(len(x)), column] * 2, (cuda(4, 8), cuda(4).long())


def chosen_by_rows_of_gpu() -> object:
    return (
        lambda x, column: x[torch.arange(len(x), device=x.device), column] * 2,
        (cuda(4, 8), cuda(4).long()),
    )


def labels_by_numpy() -> object:
    """As a conditional GAN draws its labels."""
    return lambda x: x + torch.cuda.LongTensor(np.random.randint(0, 4, 8)), (cuda(4, 8),)


def labels_by_torch() -> object:
    return lambda x: x + torch.randint(0, 4, (8,), device="cuda"), (cuda(4, 8),)


def by_rows_of_cpu() -> object:
    rows = torch.tensor([2, 0, 1])
    return lambda x: x[rows] * 2, (cuda(4, 8),)


def by_rows_of_gpu() -> object:
    rows = torch.as_tensor(torch.tensor([2, 0, 1]), device="cuda")
    return lambda x: x[rows] * 2, (cuda(4, 8),)


def by_later_rows_of_cpu() -> object:
    """As a sequence is cut out of a series from random positions."""
    rows = torch.tensor([2, 0, 1])
    return lambda x: torch.stack([x[rows + i] for i in range(2)]), (cuda(4, 8),)


def by_later_rows_of_gpu() -> object:
    rows = torch.tensor([2, 0, 1]).cuda()
    return lambda x: torch.stack([x[rows + i] for i in range(2)]), (cuda(4, 8),)


def matched() -> object:
    table = cuda(6, 4)

    def step(x):
        order = np.argsort(x.sum(1).cpu().numpy())
        rows = torch.as_tensor(order, dtype=torch.int64)
        return table[rows] * 2

    return step, (cuda(6, 4),)


def matched_before() -> object:
    table = cuda(6, 4)
    return lambda rows: table[rows] * 2, (indices(6, 6),)


def boxes_counted() -> object:
    def step(x):
        boxes = sum(len(row) for row in ([1, 2], [3]))
        boxes = torch.as_tensor([boxes], dtype=torch.float, device=x.device)
        return x / boxes

    return step, (cuda(6, 4),)


def boxes_filled() -> object:
    def step(x):
        boxes = sum(len(row) for row in ([1, 2], [3]))
        boxes = torch.full((1,), float(boxes), device=x.device)
        return x / boxes

    return step, (cuda(6, 4),)


class Rotating(nn.Module):
    """Recomputes its table if loading lost it, as models that are constructed on the meta device do."""

    def __init__(self, *, once: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, device="cuda")
        self.register_buffer("table", torch.ones(4, 4, device="cuda"))
        self.is_lost = bool(self.table[0, 0] == 0) if once else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table[0, 0] == 0 if self.is_lost is None else self.is_lost:
            self.table = torch.ones(4, 4, device="cuda")
        return self.linear(x) * self.table


def zeroed() -> object:
    def step(x, i):
        y = x.clone()
        y[i] = 0
        return y

    return step, (cuda(8, 4), indices(8, 2))


def zeroed_by_fill() -> object:
    return lambda x, i: x.clone().index_fill_(0, i, 0), (cuda(8, 4), indices(8, 2))


def element() -> object:
    def step(x):
        y = x.clone()
        y[0, 0] = 1.0
        y[1, 1] = len(y)
        return y

    return step, (cuda(8, 4),)


def element_filled() -> object:
    def step(x):
        y = x.clone()
        y[0, 0].fill_(1.0)
        y[1, :1] = 1.0
        return y

    return step, (cuda(8, 4),)


def filled() -> object:
    return lambda x, v: x.masked_fill(x > 0, v.mean()), (cuda(8, 4), cuda(3))


def chosen() -> object:
    return lambda x, v: torch.where(x > 0, v.mean(), x), (cuda(8, 4), cuda(3))


def repeated() -> object:
    def step(x, counts):
        return x.repeat_interleave(counts.clamp(2, 2), 0)

    return step, (cuda(4, 3), indices(3, 4))


def repeated_to_a_size() -> object:
    def step(x, counts):
        return x.repeat_interleave(counts.clamp(2, 2), 0, output_size=8)

    return step, (cuda(4, 3), indices(3, 4))


def counted() -> object:
    return lambda x: torch.bincount(x, minlength=5), (indices(5, 8),)


def counted_by_scatter() -> object:
    def step(x):
        return torch.zeros(5, dtype=x.dtype, device="cuda").scatter_add_(0, x, torch.ones_like(x))

    return step, (indices(5, 8),)


def positions() -> object:
    def step(x):
        (found,) = torch.where(x > 0)
        return found * 2

    return step, (cuda(8),)


def positions_of_fixed_number() -> object:
    return lambda x: torch.nonzero_static(x > 0, size=8) * 2, (cuda(8),)


def inverse() -> object:
    return lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(4, device="cuda")), (cuda(4, 8),)


def inverse_unchecked() -> object:
    def step(x):
        return torch.linalg.cholesky_ex(x @ x.T + torch.eye(4, device="cuda")).L

    return step, (cuda(4, 8),)


def histogram() -> object:
    return lambda x: torch.histc(x, 10), (cuda(64),)


def histogram_of_range() -> object:
    return lambda x: torch.histc(x, 10, min=-4, max=4), (cuda(64),)


def noise() -> object:
    return lambda mean: torch.normal(mean, mean.exp()), (cuda(8),)


def noise_scaled() -> object:
    return lambda mean: mean + mean.exp() * torch.randn_like(mean), (cuda(8),)


def jagged() -> object:
    def step(a, b):
        rows = torch.nested.nested_tensor([a, b], layout=torch.jagged)
        return (rows * 2).values()

    return step, (cuda(3, 4), cuda(5, 4))


def padded() -> object:
    def step(a, b):
        rows = torch.stack([nn.functional.pad(a, (0, 0, 0, 2)), b])
        return rows * 2

    return step, (cuda(3, 4), cuda(5, 4))


def training(model: nn.Module, optimizer: torch.optim.Optimizer, *inputs: torch.Tensor) -> object:
    model.cuda()

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer])


def clipped(*, strict: bool) -> object:
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=strict)
        optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=(cuda(8, 4),), state=[model, optimizer])


def sgd(*, fused: bool) -> object:
    model = nn.Linear(4, 4).cuda()
    rate = torch.tensor(0.1, device="cuda")
    return training(model, torch.optim.SGD(model.parameters(), rate, fused=fused), cuda(8, 4))


def embedding(*, sparse: bool) -> object:
    model = nn.Embedding(10, 4, sparse=sparse).cuda()
    if sparse:
        return training(model, torch.optim.SparseAdam(model.parameters()), indices(10, 8))
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    return training(model, optimizer, indices(10, 8))


def normed(*, let_go: bool) -> object:
    layers = nn.Sequential(*(nn.utils.weight_norm(nn.Linear(4, 4)) for _ in range(2))).cuda()
    if let_go:
        for layer in layers:
            layer.weight = layer.weight.detach()
    return training(layers, torch.optim.SGD(layers.parameters(), 0.1), cuda(8, 4))


def reparametrized() -> object:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).cuda()
    return training(nn.Sequential(layer), torch.optim.SGD(layer.parameters(), 0.1), cuda(8, 4))


def scheduled(kind: Callable[..., torch.optim.Optimizer]) -> object:
    model = nn.Linear(4, 4, bias=False).cuda()
    optimizer = kind(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return SimpleNamespace(step=step, inputs=(cuda(8, 4),), state=[model, optimizer, scheduler])


class HandWritten(torch.optim.Optimizer):
    """Adam as published code writes it: the bias correction is of a count on the host."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                state["step"] = state.get("step", 0) + 1
                correction = 1 - 0.9 ** state["step"]
                param.add_(param.grad, alpha=-group["lr"] / correction)


def hand_written() -> object:
    model = nn.Linear(4, 4).cuda()
    return training(model, HandWritten(model.parameters()), cuda(8, 4))


def fixes_of(example: Example) -> dict[str, str]:
    return {finding.rule: finding.fix for finding in diagnosed(example).findings}


def test_the_step_count_of_a_hand_written_optimizer_is_no_learning_rate() -> None:
    fixes = fixes_of(hand_written)
    assert set(fixes) == {"GD203"}
    assert fixes["GD203"].startswith("Count the steps in a GPU tensor")


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_a_rate_on_the_device_is_not_advised_where_the_optimizer_would_read_it() -> None:
    fixes = fixes_of(lambda: scheduled(lambda params: torch.optim.Muon(params, lr=0.1)))
    assert fixes["GD204"].startswith("Call optimizer.step() outside the captured region")
    rate = torch.tensor(0.1)
    as_tensor = lambda: scheduled(lambda params: torch.optim.Muon(params, lr=rate.cuda()))  # noqa: E731
    assert "GD101" in fixes_of(as_tensor)


def test_capturable_is_not_advised_for_an_optimizer_that_has_no_such_form() -> None:
    fixes = fixes_of(lambda: scheduled(lambda params: torch.optim.Adafactor(params, lr=0.1)))
    assert set(fixes) == {"GD111"}
    assert fixes["GD111"].startswith("Call optimizer.step() outside the captured region")


def test_the_state_that_an_optimizer_of_torch_keeps_on_the_cpu_is_not_for_the_reader_to_move() -> (
    None
):
    fixes = fixes_of(lambda: scheduled(lambda params: torch.optim.Adagrad(params, lr=0.1)))
    assert fixes["GD209"].startswith("Call optimizer.step() outside the captured region")


PAIRS: list[tuple[str, Example, str, Example]] = [
    ("GD101", classes, "F.one_hot(x, num_classes)", classes_given),
    (
        "GD101",
        lambda: encoded(is_causal=None),
        "Pass is_causal=True",
        lambda: encoded(is_causal=True),
    ),
    ("GD103", packed, "Run the RNN on the padded tensor", unpacked),
    ("GD101", row, "x.index_select(0, i.view(1))", row_on_device),
    ("GD101", compared, "torch.isclose(x, y).all()", compared_on_device),
    ("GD101", variance_checked, "0.5 * (var.log() + (x - target)", variance_written_out),
    ("GD101", covariance, "x - x.mean(1, keepdim=True)", covariance_written_out),
    (
        "GD101",
        lambda: clipped(strict=True),
        "without error_if_nonfinite",
        lambda: clipped(strict=False),
    ),
    ("GD101", lambda: sgd(fused=False), "fused=True", lambda: sgd(fused=True)),
    ("GD104", last_by_list, "x[:, -1:]", last_by_slice),
    (
        "GD104",
        by_rows_of_cpu,
        'Add a line before the step, which moves `rows` to the GPU: `rows = torch.as_tensor(rows, device="cuda")`',
        by_rows_of_gpu,
    ),
    (
        "GD104",
        by_later_rows_of_cpu,
        "Move the tensors that `rows + i` is computed from to the GPU before the step.",
        by_later_rows_of_gpu,
    ),
    (
        "GD104",
        chosen_by_rows_of_cpu,
        "Create the index on the GPU: `torch.arange(len(x), device=x.device)`.",
        chosen_by_rows_of_gpu,
    ),
    ("GD104", matched, "end the captured region there", matched_before),
    ("GD104", zeroed, "index_fill_", zeroed_by_fill),
    ("GD105", boxes_counted, "torch.full", boxes_filled),
    ("GD105", labels_by_numpy, "Draw on the GPU: `torch.randint(0, 4, size, ", labels_by_torch),
    ("GD105", element, "y[0, 0].fill_(1.0)", element_filled),
    ("GD105", jagged, "Keep the padded tensor", padded),
    ("GD106", repeated, "Pass output_size=", repeated_to_a_size),
    ("GD106", counted, "scatter_add_", counted_by_scatter),
    (
        "GD106",
        edges_in_the_step,
        "is the same in each step: compute it once",
        edges_before_the_step,
    ),
    ("GD106", positions, "torch.nonzero_static", positions_of_fixed_number),
    ("GD107", asserted, "torch._assert_async(condition)", asserted_on_device),
    ("GD107", asserted_not, "torch._assert_async(condition)", asserted_not_on_device),
    ("GD107", raised, "torch._assert_async(condition)", asserted_on_device),
    ("GD107", ended, "torch._assert_async(condition)", asserted_on_device),
    (
        "GD107",
        lambda: (Rotating(once=False), (cuda(4, 4),)),
        "No recorded step changes `model.table`: evaluate this condition once",
        lambda: (Rotating(once=True), (cuda(4, 4),)),
    ),
    ("GD107", until_small, "a fixed number of iterations", rounds),
    ("GD114", filled, "torch.where(mask, value, x)", chosen),
    ("GD114", inverse, "cholesky_ex", inverse_unchecked),
    ("GD114", histogram, "min= and max=", histogram_of_range),
    ("GD114", noise, "torch.randn_like(mean)", noise_scaled),
    (
        "GD114",
        lambda: embedding(sparse=True),
        "without sparse=True",
        lambda: embedding(sparse=False),
    ),
    (
        "GD117",
        lambda: normed(let_go=False),
        "`model.0.weight` and `model.1.weight` with their detach()",
        lambda: normed(let_go=True),
    ),
    ("GD117", lambda: normed(let_go=False), "torch.nn.utils.parametrizations", reparametrized),
]


# Here a torch may do by itself what the advice says.
STORES_A_NUMBER = (zeroed, element)


def each_pair():
    mark = pytest.mark.xfail(STORES_NUMBERS_BY_FILLING, reason=WHY_FILLING, strict=True)
    for rule, bad, said, good in PAIRS:
        marks = [mark] if bad in STORES_A_NUMBER else []
        yield pytest.param(rule, bad, said, good, id=said, marks=marks)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("rule", "bad", "said", "good"), each_pair())
def test_a_step_that_follows_the_fix_has_no_finding_and_replays_right(
    rule: str, bad: Example, said: str, good: Example
) -> None:
    assert_followed(rule, bad, said, good)


def halved_if_large() -> object:
    def step(x):
        loss = x.square().mean()
        if loss > 1.0:
            loss = loss * 0.5
        return loss

    return step, (cuda(8, 4),)


def signed() -> object:
    return lambda x: x.sin() if x.sum() > 0 else x.cos(), (cuda(8, 4),)


def asserted_both() -> object:
    def step(x):
        assert x.max() < 100.0 and x.min() > -100.0
        return x * 2

    return step, (cuda(8, 4),)


def asserted_between() -> object:
    def step(x):
        assert -100.0 < x.sum() < 100.0
        return x * 2

    return step, (cuda(8, 4),)


def read_and_signed() -> object:
    return lambda x: x.sin() if x.sum().item() > 0 else x.cos(), (cuda(8, 4),)


@pytest.mark.parametrize(
    ("example", "texts"),
    [
        (asserted_not, ["torch._assert_async(torch.logical_not(torch.isnan(x).any()))"]),
        (asserted_both, []),
        (asserted_between, []),
        (read_and_signed, []),
        (halved_if_large, ["loss = torch.where(loss > 1.0, loss * 0.5, loss)"]),
        (signed, ["torch.where(x.sum() > 0, x.sin(), x.cos())"]),
        (asserted, ["torch._assert_async((x * 0 == 0).all())"]),
        (raised, []),
        (lambda: (Rotating(once=False), (cuda(4, 4),)), []),
    ],
)
def test_the_edits_of_a_branch_are_those_of_its_cure(example: Example, texts: list[str]) -> None:
    found = [one for one in diagnosed(example).findings if one.rule == "GD107"]
    assert [edit.new_text for one in found for edit in one.edits] == texts


def test_an_assertion_never_fails_in_a_replay() -> None:
    (found,) = [one for one in diagnosed(asserted).findings if one.rule == "GD107"]
    assert found.message.endswith("this assertion never fires, even if its condition is false.")


@pytest.mark.parametrize("is_drawn", [True, False])
def test_a_draw_that_moves_to_the_gpu_is_said_to_give_other_numbers(*, is_drawn: bool) -> None:
    def drawn() -> object:
        def step(x):
            return x + torch.randn(4).to(x.device)

        def filled(x):
            return x + torch.ones(4).to(x.device)

        return step if is_drawn else filled, (cuda(8, 4),)

    (found,) = [one for one in diagnosed(drawn).findings if one.rule == "GD104"]
    assert (" the same seed draws other numbers." in found.message) == is_drawn


def test_a_tensor_that_another_one_moves_is_made_like_that_if_it_is_known_for_a_tensor() -> None:
    """krrish94/nerf-pytorch: `torch.linspace(near, far, n).to(ray_origins)`."""

    def moved() -> object:
        def step(x):
            return x + torch.ones(4).to(x)

        return step, (cuda(8, 4),)

    def shaped() -> object:
        def step(x):
            return x + torch.ones(x.shape[1]).to(x)

        return step, (cuda(8, 4),)

    (found,) = [one for one in diagnosed(moved).findings if one.rule == "GD104"]
    assert not found.edits
    (found,) = [one for one in diagnosed(shaped).findings if one.rule == "GD104"]
    assert [edit.new_text for edit in found.edits] == [
        "torch.ones(x.shape[1], dtype=x.dtype, device=x.device)"
    ]


def test_a_covariance_is_factored_without_a_check() -> None:
    """nikhilbarhate99/PPO-PyTorch: `MultivariateNormal(action_mean, cov_mat)`."""

    def drawn() -> object:
        def step(x, variance):
            covariance = torch.diag_embed(variance)
            normal = MultivariateNormal(x, covariance, validate_args=False)
            return normal.log_prob(x + 1)

        return step, (cuda(8, 4), cuda(8, 4).exp())

    def followed() -> object:
        def step(x, variance):
            covariance = torch.diag_embed(variance)
            factor = torch.linalg.cholesky_ex(covariance).L
            normal = MultivariateNormal(x, scale_tril=factor, validate_args=False)
            return normal.log_prob(x + 1)

        return step, (cuda(8, 4), cuda(8, 4).exp())

    (found,) = diagnosed(drawn).findings
    assert found.rule == "GD114"
    assert found.fix.startswith("Pass `scale_tril=torch.linalg.cholesky_ex(covariance).L` instead")
    assert [edit.new_text for edit in found.edits] == [
        "MultivariateNormal(x, validate_args=False, scale_tril=torch.linalg.cholesky_ex(covariance).L)"
    ]
    assert not diagnosed(followed).findings


def test_a_gradient_that_goes_to_a_leaf_on_the_cpu_is_said_to_be_one() -> None:
    """jayroxis/PINNs: `torch.tensor(x, requires_grad=True).float().to(device)`, before the step."""

    def fitted() -> object:
        points = torch.ones(8, 4, requires_grad=True).to("cuda")
        weight = torch.ones(4, 1, device="cuda", requires_grad=True)

        def step(x):
            ((points * x) @ weight).sum().backward()
            return weight.grad.clone()

        return step, (cuda(8, 4),)

    (found,) = [one for one in diagnosed(fitted).findings if one.rule == "GD103"]
    assert found.fix.startswith("The backward pass copies the gradient of a CPU tensor")


def test_a_tensor_that_is_made_and_shaped_on_the_cpu_is_made_on_the_gpu() -> None:
    """HobbitLong/SupContrast: `torch.arange(n).view(-1, 1).to(device)`."""

    def shaped() -> object:
        def step(x):
            return x + torch.arange(8).view(-1, 1).to(x.device)

        return step, (cuda(8, 4),)

    (found,) = [one for one in diagnosed(shaped).findings if one.rule == "GD104"]
    assert [e.new_text for e in found.edits] == ["torch.arange(8, device=x.device).view(-1, 1)"]


def causal() -> object:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cuda")

    def step(q, k, v):
        return flex_attention(q, k, v, block_mask=mask)

    return step, tuple(cuda(1, 2, 128, 16) for _ in range(3))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_way_out_of_eager_flex_attention_is_to_compile_it() -> None:
    """The emulated device runs compiled code eagerly, so that the cure cannot be followed there."""
    fixes = {one.rule: one.fix for one in diagnosed(causal).findings}
    assert fixes["GD105"].startswith("Call `torch.compile(flex_attention)`"), fixes


@pytest.mark.parametrize(
    ("is_causal", "decoding", "text"),
    [
        (True, False, "encoder(x, mask, is_causal=True)"),
        (False, False, "encoder(x, mask, is_causal=False)"),
        (True, True, "decoder(x, x, tgt_mask=mask, tgt_is_causal=True)"),
        (False, True, "decoder(x, x, tgt_mask=mask, tgt_is_causal=False)"),
    ],
)
def test_the_edit_of_a_masked_call_says_whether_its_mask_is_causal(
    is_causal: bool, decoding: bool, text: str
) -> None:
    def example() -> object:
        mask = nn.Transformer.generate_square_subsequent_mask(3, device="cuda")
        return layers(mask if is_causal else mask.t(), decoding=decoding)

    (found,) = diagnosed(example).findings
    assert [edit.new_text for edit in found.edits] == [text]
    assert found.fix.startswith(f"Pass is_causal={is_causal}")


@pytest.mark.parametrize(
    "call",
    [
        "nn.functional.dropout(encoder(x, mask), 0.0)",
        "model(x, x, src_mask=mask, tgt_mask=mask)",
        "encoder(x, mask, is_causal=None)",
        "encoder(x, **options)",
    ],
)
def test_a_call_whose_mask_is_not_certain_is_not_edited(call: str, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"y = {call}\n", encoding="utf-8")
    assert with_causality(Location(str(file), 1, "<module>"), is_causal=True) == ()
