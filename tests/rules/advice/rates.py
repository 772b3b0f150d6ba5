"""GD204 and GD111: options of optimizers that are numbers of Python."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import nn

from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

RATES = Variants()


def rate() -> torch.Tensor:
    return torch.tensor(0.1, device="cuda")


def training(
    optimizer_of: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    *,
    before: Callable[[torch.optim.Optimizer], object] = lambda optimizer: None,
    steps: bool = True,
) -> object:
    """A step of SGD or Adam; `before` sets its options, and `steps` says whether the optimizer is in it."""
    model = nn.Linear(4, 4, device="cuda")
    nn.init.constant_(model.weight, 0.5)
    optimizer = optimizer_of(list(model.parameters()))

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        before(optimizer)
        if steps:
            optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=(cuda(8, 4),), state=[model, optimizer])


def sgd(params, **options):
    return torch.optim.SGD(params, **{"lr": 0.1, **options})


def fused(params):
    return torch.optim.SGD(params, lr=rate(), fused=True)


def adam(params, **options):
    return torch.optim.Adam(params, **{"lr": 0.1, **options})


def halve(key: str) -> Callable[[torch.optim.Optimizer], None]:
    def change(optimizer):
        for group in optimizer.param_groups:
            group[key] *= 0.5

    return change


def decay_betas(optimizer):
    for group in optimizer.param_groups:
        group["betas"] = (group["betas"][0] * 0.9, 0.99)


def rates(optimizer_of: object, *, how: str) -> object:
    """A step that sets the rate ("assigned"), or leaves it to its caller ("outside")."""
    model = nn.Linear(4, 4, device="cuda")
    nn.init.constant_(model.weight, 0.5)
    optimizer, epoch = optimizer_of(list(model.parameters())), [0]  # type: ignore[operator]

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if how != "outside":
            epoch[0] += 1
        if how == "assigned":
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * 0.5 ** epoch[0]
        optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=(cuda(8, 4),), state=[model, optimizer, epoch])


def scaled(optimizer_of: object) -> object:
    model = nn.Linear(4, 4, device="cuda")
    nn.init.constant_(model.weight, 0.5)
    optimizer = optimizer_of(list(model.parameters()))  # type: ignore[operator]

    def scaled_step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        optimizer.step()
        return loss

    return SimpleNamespace(step=scaled_step, inputs=(cuda(8, 4),), state=[model, optimizer])


def pair(
    rule: str, says: str, name: str, before: object, after: object, *, same: bool = True
) -> None:
    before.__name__ = name  # type: ignore[attr-defined]
    RATES.before(rule, says, same=same)(before)  # type: ignore[arg-type]
    RATES.after(after)  # type: ignore[arg-type]


_RATE = 'lr=torch.tensor(lr, device="cuda")'
_OUTSIDE = "Call optimizer.step() outside the captured region, after the replay"

pair(
    "GD204", f"`weight_decay` is a Python number in the optimizer, unlike `lr`. {_OUTSIDE}", "scheduled_weight_decay",
    lambda: training(lambda p: sgd(p, weight_decay=0.1), before=halve("weight_decay")),
    lambda: training(lambda p: sgd(p, weight_decay=0.1), steps=False), same=False,
)  # fmt: skip
pair(
    "GD204", f"`momentum` is a Python number in the optimizer, unlike `lr`. {_OUTSIDE}", "scheduled_momentum",
    lambda: training(lambda p: sgd(p, momentum=0.9), before=halve("momentum")),
    lambda: training(lambda p: sgd(p, momentum=0.9), steps=False), same=False,
)  # fmt: skip
pair(
    "GD204", f"`betas` are Python numbers in the optimizer, unlike `lr`. {_OUTSIDE}", "scheduled_betas",
    lambda: training(lambda p: adam(p, lr=rate(), capturable=True), before=decay_betas),
    lambda: training(lambda p: adam(p, lr=rate(), capturable=True), steps=False), same=False,
)  # fmt: skip
pair(
    "GD204", "with `group['lr'].fill_(0.1 * 0.5 ** epoch[0])`, since an", "rate_assigned_in_group",
    lambda: rates(fused, how="assigned"), lambda: rates(fused, how="outside"), same=False,
)  # fmt: skip
pair(
    "GD204", f"Construct SGD with `{_RATE}, fused=True`. Then `group['lr'] *= 0.5`", "rate_scaled_in_group",
    lambda: scaled(sgd), lambda: scaled(fused),
)  # fmt: skip
pair(
    "GD204", f"Construct Adam with `{_RATE}`. Then `group['lr'] *= 0.5`", "rate_of_adam_scaled_in_group",
    lambda: scaled(lambda p: adam(p, capturable=True)),
    lambda: scaled(lambda p: adam(p, lr=rate(), capturable=True)),
)  # fmt: skip
pair(
    "GD111", "with `group['lr'].fill_(0.1 * 0.5 ** epoch[0])`, since an", "adam_with_an_assigned_rate",
    lambda: rates(adam, how="assigned"),
    lambda: rates(lambda p: adam(p, lr=rate(), capturable=True), how="outside"), same=False,
)  # fmt: skip
pair(
    "GD111", f"`betas` are Python numbers in the optimizer, unlike `lr`. {_OUTSIDE}", "adam_with_scheduled_betas",
    lambda: training(adam, before=decay_betas), lambda: training(adam, steps=False), same=False,
)  # fmt: skip
_CAPTURABLE = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
    "rmsprop": torch.optim.RMSprop,
    "adamax": torch.optim.Adamax,
}
for _name, _kind in _CAPTURABLE.items():
    pair(
        "GD111",
        "capturable=True",
        _name,
        lambda kind=_kind: training(lambda p: kind(p, lr=0.1)),
        lambda kind=_kind: training(lambda p: kind(p, lr=rate(), capturable=True)),
    )
