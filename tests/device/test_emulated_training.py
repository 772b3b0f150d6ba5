"""Whole training steps on the emulated device compute what the same steps compute on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphdoctor.device.emulated import EmulatedDevice

Optimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]
Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers = kind(8, 8, batch_first=True, num_layers=2, dropout=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.unsqueeze(1))[0]


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.bag = nn.EmbeddingBag(10, 8, mode="sum")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.randint(0, 10, (4, 3), device=x.device)
        return self.table(rows).sum(dim=1) + self.bag(rows) + x


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())
        self.second = nn.Sequential(
            nn.MaxPool2d(2), nn.ConvTranspose2d(3, 2, 2), nn.GroupNorm(1, 2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x.view(4, 1, 2, 4)))
        return F.interpolate(F.gelu(F.adaptive_avg_pool2d(y, 3)), scale_factor=2, mode="bilinear")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder(x.unsqueeze(0))
        x = self.attention(x, x, x, need_weights=False)[0]
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


class Dropouts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.second(F.alpha_dropout(F.relu(self.first(x)), 0.1)), 0.3)


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def sgd(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def trained(
    device: str, model: nn.Module, make_optimizer: Optimizer, forward: Forward = plain
) -> list[torch.Tensor]:
    """Every tensor of the model after three steps, on the CPU."""
    model.to(device)
    optimizer = make_optimizer(model.parameters())
    for _ in range(3):
        x = torch.randn(4, 8, device=device)
        optimizer.zero_grad()
        forward(model, x).float().square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert {p.device.type for p in model.parameters()} == {device}
    return [value.detach().cpu() for value in model.state_dict().values()]


def emulated_and_plain(
    make_model: Callable[[], nn.Module], *rest: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    def run(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        return trained(device, make_model(), *rest)

    with EmulatedDevice():
        emulated = run("cuda")
    return emulated, run("cpu")


def assert_equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "make_model",
    [linear, Embeddings, Convolutions, Attention, Dropouts]
    + [partial(Recurrent, kind) for kind in (nn.LSTM, nn.GRU, nn.RNN)],
)
def test_layers_train_as_on_the_cpu(make_model: Callable[[], nn.Module]) -> None:
    assert_equal(*emulated_and_plain(make_model, sgd))


ADAM = torch.optim.Adam


@pytest.mark.parametrize(
    "make",
    [
        partial(ADAM, lr=0.1, foreach=False),
        partial(ADAM, lr=0.1, foreach=True, amsgrad=True),
        partial(ADAM, lr=0.1, fused=True),
        partial(torch.optim.AdamW, lr=0.1),
        partial(torch.optim.SGD, lr=0.1, fused=True),
        partial(torch.optim.RMSprop, lr=0.01),
        partial(torch.optim.Adagrad, lr=0.1),
    ],
)
def test_optimizers_step_as_on_the_cpu(make: Optimizer) -> None:
    assert_equal(*emulated_and_plain(linear, make))


CAPTURABLE = (
    "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "RMSprop", "Rprop",
)  # fmt: skip


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", CAPTURABLE)
def test_capturable_optimizers_step_as_the_others_do(name: str, foreach: bool) -> None:
    """The CPU has no capturable ones to compare with: they differ from the plain form by rounding."""

    def make(parameters: Iterable[torch.Tensor], capturable: bool) -> torch.optim.Optimizer:
        kind = getattr(torch.optim, name)
        return kind(parameters, lr=0.01, foreach=foreach, capturable=capturable)

    torch.manual_seed(0)
    with EmulatedDevice():
        capturable = trained("cuda", linear(), partial(make, capturable=True))
    torch.manual_seed(0)
    ordinary = trained("cpu", linear(), partial(make, capturable=False))
    for one, other in zip(capturable, ordinary, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_backward_pass_through_weights_that_an_optimizer_has_moved_raises(
    make: type[torch.optim.Optimizer],
) -> None:
    """The kernels for lists of tensors, which a GPU runs, count their writes as any others do."""
    with EmulatedDevice():
        x, weight = (torch.ones(3, device="cuda", requires_grad=True) for _ in range(2))
        loss = (x * weight).sum()
        loss.backward(retain_graph=True)
        make([weight], lr=0.1).step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_learning_rate_on_the_device_is_used() -> None:
    def make(parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        rate = torch.tensor(0.1, device="cuda")
        return torch.optim.AdamW(parameters, lr=rate, capturable=True)

    torch.manual_seed(0)
    with EmulatedDevice():
        on_device = trained("cuda", linear(), make)
    torch.manual_seed(0)
    ordinary = trained("cpu", linear(), partial(torch.optim.AdamW, lr=0.1))
    for one, other in zip(on_device, ordinary, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("preserve_rng_state", [True, False])
def test_checkpointing_recomputes_the_same(use_reentrant: bool, preserve_rng_state: bool) -> None:
    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(
            model,
            x.requires_grad_(),
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve_rng_state,
        )

    make_model = Dropouts if preserve_rng_state else linear
    assert_equal(*emulated_and_plain(make_model, sgd, forward))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make_model", [linear, Convolutions, Attention])
def test_autocast_casts_as_on_the_cpu(
    make_model: Callable[[], nn.Module], dtype: torch.dtype
) -> None:
    dtypes: set[torch.dtype] = set()

    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=dtype):
            dtypes.add((x @ x.T).dtype)
            return model(x)

    emulated, plain = emulated_and_plain(make_model, sgd, forward)
    # If the CPU has no quick kernels, the emulated device rounds once. The CPU's own kernels round each partial
    # sum, so that a small sum of large terms differs by a rounding of the terms.
    eps = torch.finfo(dtype).eps
    is_quick = dtype is torch.float16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    for one, other in zip(emulated, plain, strict=True):
        atol = 1e-4 if is_quick else eps * float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=eps, atol=atol)
    assert dtypes == {dtype}


def test_autocast_leaves_the_cpu_as_it_was() -> None:
    with EmulatedDevice():
        with torch.autocast("cuda"), torch.autocast("cuda", enabled=False):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu") and not torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make_model", [linear, Convolutions, Attention])
def test_half_models_train(make_model: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return model(x.to(dtype))

    # A GPU's optimizers work on lists of tensors, and round in other places than the CPU's.
    emulated, plain = emulated_and_plain(lambda: make_model().to(dtype), sgd, forward)
    torch.testing.assert_close(emulated, plain, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("overflows", [False, True])
def test_the_gradient_scaler_skips_what_overflows(overflows: bool) -> None:
    def run(device: str) -> tuple[torch.Tensor, float]:
        torch.manual_seed(0)
        model = linear().to(device)
        optimizer = sgd(model.parameters())
        scaler = torch.amp.GradScaler(device, init_scale=4.0)
        factor = float("inf") if overflows else 1.0
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 8, device=device)).square().mean() * factor
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return model[0].weight.detach().cpu(), scaler.get_scale()

    with EmulatedDevice():
        weight, scale = run("cuda")
    expected, expected_scale = run("cpu")
    assert torch.equal(weight, expected) and scale == expected_scale
    assert scale == (1.0 if overflows else 4.0)


def test_evaluation_uses_the_statistics_of_training() -> None:
    def run(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5)).to(device)
        model(torch.randn(4, 8, device=device))
        model.eval()
        with torch.inference_mode() if device == "cuda" else nullcontext():
            return model(torch.ones(4, 8, device=device)).detach().cpu()

    with EmulatedDevice():
        emulated = run("cuda")
    assert torch.equal(emulated, run("cpu"))
