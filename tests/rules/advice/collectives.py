"""GD216: collectives that not every rank calls alike. Each function is a target of `graphdoctor analyze --ranks 2`.

`benchmarks/truth/advice.py` runs them: two processes for each are too slow for the tests.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

RANKED = ("logged_loss", "uneven_gather", "skipped_when_empty", "swapped_order", "best_rank_sends")


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def rank() -> int:
    if not dist.is_initialized():
        dist.init_process_group("nccl")
    return dist.get_rank()


def logged_loss():
    """The loss that is logged is reduced on the rank that logs."""
    first = rank() == 0

    def step(x):
        loss = x.square().mean()
        shown = loss.clone()
        if first:
            dist.all_reduce(shown)
        return loss + 0 * shown

    return step, (values(8, 4),)


def logged_loss_after():
    rank()

    def step(x):
        loss = x.square().mean()
        shown = loss.clone()
        dist.all_reduce(shown)
        return loss + 0 * shown

    return step, (values(8, 4),)


def uneven_gather():
    """The last rank has fewer rows than the others, as with a sampler that does not pad."""
    rows = 4 if rank() == 0 else 3

    def step(x):
        mine = x[:rows].contiguous()
        out = torch.empty(rows * dist.get_world_size(), 4, device="cuda")
        dist.all_gather_into_tensor(out, mine)
        return out

    return step, (values(4, 4),)


def uneven_gather_after():
    rows = 4 if rank() == 0 else 3

    def step(x):
        mine = torch.cat([x[:rows], x.new_zeros(4 - rows, 4)])
        out = torch.empty(4 * dist.get_world_size(), 4, device="cuda")
        dist.all_gather_into_tensor(out, mine)
        return out

    return step, (values(4, 4),)


def skipped_when_empty():
    """An expert without tokens does not take part in the sum of the gradients."""
    tokens = 4 if rank() == 0 else 0

    def step(x):
        grad = torch.zeros(4, device="cuda")
        if tokens:
            grad = x[:tokens].sum(0)
            dist.all_reduce(grad)
        return grad

    return step, (values(8, 4),)


def skipped_when_empty_after():
    tokens = 4 if rank() == 0 else 0

    def step(x):
        grad = x[:tokens].sum(0)
        dist.all_reduce(grad)
        return grad

    return step, (values(8, 4),)


def swapped_order():
    """Each rank reduces its own half first."""
    mine = rank()

    def step(x):
        halves = [x[:, :2].contiguous(), x[:, 2:].sum(0)]
        dist.all_reduce(halves[mine])
        dist.all_reduce(halves[1 - mine])
        return halves[0] + halves[1]

    return step, (values(8, 4),)


def swapped_order_after():
    rank()

    def step(x):
        halves = [x[:, :2].contiguous(), x[:, 2:].sum(0)]
        dist.all_reduce(halves[0])
        dist.all_reduce(halves[1])
        return halves[0] + halves[1]

    return step, (values(8, 4),)


def best_rank_sends():
    """Rank 0 sends the weights, and the others call something else in that moment."""
    first = rank() == 0

    def step(x):
        weights = x.mean(0)
        if first:
            dist.broadcast(weights, src=0)
        else:
            dist.all_reduce(weights)
        return weights

    return step, (values(8, 4),)


def best_rank_sends_after():
    rank()

    def step(x):
        weights = x.mean(0)
        dist.broadcast(weights, src=0)
        return weights

    return step, (values(8, 4),)
