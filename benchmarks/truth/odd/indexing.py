"""Steps with indices, samples and losses of torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from odd.step import CUDA, odd, trained, x8


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


def ctc(*, lengths_on: str) -> tuple[Any, ...]:
    model = nn.Linear(8, 5).cuda()
    targets = torch.randint(1, 5, (2, 3), device=CUDA)
    lengths = torch.tensor([12, 10], device=lengths_on), torch.tensor([3, 2], device=lengths_on)

    def loss(out):
        return F.ctc_loss(out.log_softmax(-1), targets, *lengths)

    return trained(model, loss=loss), (x8(12, 2, 8),), model


@odd
def ctc_with_lengths_on_the_host():
    return ctc(lengths_on="cpu")


@odd
def ctc_with_lengths_on_the_device():
    return ctc(lengths_on=CUDA)


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
