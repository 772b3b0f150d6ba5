"""GD119 to GD122: what a step of several ranks calls that no capture takes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

RANKS = Variants()


def world(**options: object) -> None:
    if not dist.is_initialized():
        dist.init_process_group("nccl", **options)


def reduced(wait: Callable[[], object] = lambda: None) -> object:
    """A loss whose number of positives is summed over the ranks."""
    world()

    def step(x):
        positives = (x > 0).sum()
        wait()
        dist.all_reduce(positives)
        return x.relu().sum() / positives.clamp(min=1)

    return step, (cuda(8, 4),)


BARRIER = "Move the barrier outside the step"


@RANKS.before("GD119", BARRIER)
def barrier_before_the_sum() -> object:
    return reduced(lambda: dist.barrier())


RANKS.after(reduced)


@RANKS.before("GD119", BARRIER)
def barrier_if_initialized() -> object:
    def synchronize():
        if dist.is_available() and dist.is_initialized():
            dist.barrier()

    return reduced(synchronize)


RANKS.after(reduced)


@RANKS.before("GD119", BARRIER)
def barrier_of_this_gpu() -> object:
    return reduced(lambda: dist.barrier(device_ids=[torch.cuda.current_device()]))


RANKS.after(reduced)


@RANKS.before("GD119", BARRIER)
def barrier_that_is_waited_for() -> object:
    return reduced(lambda: dist.barrier(async_op=True).wait())


RANKS.after(reduced)


@RANKS.before("GD119", BARRIER)
def barrier_after_a_print() -> object:
    def debug_print(*words):
        if dist.get_rank() == 0:
            print(*words)
        dist.barrier()

    return reduced(lambda: debug_print())


RANKS.after(reduced)

TENSOR = "Send a tensor instead of an object"


def broadcast(*, objects: bool) -> object:
    world()

    def step(x):
        if objects:
            scales = [2.0]
            dist.broadcast_object_list(scales, src=0)
            return x * scales[0]
        scale = torch.full((), 2.0, device="cuda")
        dist.broadcast(scale, src=0)
        return x * scale

    return step, (cuda(8, 4),)


@RANKS.before("GD120", TENSOR)
def scale_as_an_object() -> object:
    return broadcast(objects=True)


@RANKS.after
def scale_as_a_tensor() -> object:
    return broadcast(objects=False)


def gathered(*, objects: bool) -> object:
    """The losses of all ranks."""
    world()

    def step(x):
        loss = x.square().mean()
        if objects:
            losses = [None] * dist.get_world_size()
            dist.all_gather_object(losses, loss)
        else:
            losses = [torch.empty_like(loss) for _ in range(dist.get_world_size())]
            dist.all_gather(losses, loss)
        return torch.stack(losses).mean()

    return step, (cuda(8, 4),)


@RANKS.before("GD120", TENSOR)
def losses_as_objects() -> object:
    return gathered(objects=True)


@RANKS.after
def losses_as_tensors() -> object:
    return gathered(objects=False)


def logged(*, inside: bool) -> object:
    """The names of the losses, so that each rank logs the same."""
    world()

    def step(x):
        losses = {"l1": x.abs().mean(), "l2": x.square().mean()}
        if inside:
            names = [None] * dist.get_world_size()
            dist.all_gather_object(names, list(losses))
            losses = {name: losses[name] for name in sorted(set().union(*names))}
        return losses

    return step, (cuda(8, 4),)


@RANKS.before("GD120", "move the call outside the step")
def names_of_losses_gathered() -> object:
    return logged(inside=True)


@RANKS.after
def names_of_losses_gathered_outside() -> object:
    return logged(inside=False)


def first_rank(*, objects: bool) -> object:
    """The sums of the ranks on the first one."""
    world()

    def step(x):
        total = x.sum()
        if objects:
            totals = [None] * dist.get_world_size()
            dist.gather_object(total, totals, dst=0)
        else:
            totals = [torch.empty_like(total) for _ in range(dist.get_world_size())]
            dist.gather(total, totals, dst=0)
        return torch.stack(totals).sum()

    return step, (cuda(8, 4),)


@RANKS.before("GD120", TENSOR)
def sums_as_objects() -> object:
    return first_rank(objects=True)


@RANKS.after
def sums_as_tensors() -> object:
    return first_rank(objects=False)


def scattered(*, objects: bool) -> object:
    """A number for each rank."""
    world()

    def step(x):
        if objects:
            mine = [None]
            dist.scatter_object_list(
                mine, [float(rank + 2) for rank in range(dist.get_world_size())], src=0
            )
            return x * mine[0]
        mine = torch.empty((), device="cuda")
        dist.scatter(
            mine,
            [torch.full((), rank + 2.0, device="cuda") for rank in range(dist.get_world_size())],
            src=0,
        )
        return x * mine

    return step, (cuda(8, 4),)


@RANKS.before("GD120", TENSOR)
def numbers_as_objects() -> object:
    return scattered(objects=True)


@RANKS.after
def numbers_as_tensors() -> object:
    return scattered(objects=False)


def parallel(*, on_side: bool, sums: int = 1, trains: bool = False, **options: object) -> object:
    """A training step of DistributedDataParallel, with gradients of `sums` batches."""
    world()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).cuda()
    for at in (0, 2):
        nn.init.constant_(model[at].weight, 0.5)
        nn.init.zeros_(model[at].bias)
    if on_side:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            ddp = DistributedDataParallel(model, **options)
    else:
        ddp = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        for _ in range(sums - 1):
            with ddp.no_sync():
                ddp(x).square().mean().backward()
        loss = ddp(x).square().mean()
        loss.backward()
        if trains:
            optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=(cuda(8, 4),), state=[ddp, optimizer])


SIDE = "Create the module inside `with torch.cuda.stream(side):`"


@RANKS.before("GD121", SIDE)
def ddp_of_one_gpu() -> object:
    return parallel(on_side=False, device_ids=[0], output_device=0)


@RANKS.after
def ddp_of_one_gpu_on_side() -> object:
    return parallel(on_side=True, device_ids=[0], output_device=0)


@RANKS.before("GD121", SIDE)
def ddp_with_optimizer() -> object:
    return parallel(on_side=False, trains=True)


@RANKS.after
def ddp_with_optimizer_on_side() -> object:
    return parallel(on_side=True, trains=True)


@RANKS.before("GD121", SIDE)
def ddp_that_accumulates() -> object:
    return parallel(on_side=False, sums=2)


@RANKS.after
def ddp_that_accumulates_on_side() -> object:
    return parallel(on_side=True, sums=2)


@RANKS.before("GD121", SIDE)
def ddp_with_views() -> object:
    return parallel(on_side=False, gradient_as_bucket_view=True, static_graph=True)


@RANKS.after
def ddp_with_views_on_side() -> object:
    return parallel(on_side=True, gradient_as_bucket_view=True, static_graph=True)


@RANKS.before("GD121", SIDE)
def ddp_that_finds_unused() -> object:
    return parallel(on_side=False, find_unused_parameters=True)


@RANKS.after
def ddp_that_finds_unused_on_side() -> object:
    return parallel(on_side=True, find_unused_parameters=True)


USED = "Run one collective on the group before the capture"


def captured_branch(
    collective: Callable[..., object], *, used: bool, eager: str = "default"
) -> object:
    """A layer that takes another group, or a collective at all, only while a graph is captured."""
    world()
    group = dist.new_group([*range(dist.get_world_size())])
    if used:
        dist.all_reduce(torch.ones(1, device="cuda"), group=group)

    def step(x):
        y = x * 2
        if torch.cuda.is_current_stream_capturing():
            return collective(y, group).relu()
        return (collective(y, None) if eager == "default" else y).relu()

    return step, (cuda(8, 4),)


def summed(y, group):
    dist.all_reduce(y, group=group)
    return y


def averaged(y, group):
    dist.all_reduce(y, group=group, op=dist.ReduceOp.AVG)
    return y


def joined(y, group):
    out = torch.empty(len(y) * dist.get_world_size(), y.shape[1], device="cuda")
    dist.all_gather_into_tensor(out, y, group=group)
    return out


def shared(y, group):
    out = torch.empty(len(y) // dist.get_world_size(), y.shape[1], device="cuda")
    dist.reduce_scatter_tensor(out, y, group=group)
    return out


def exchanged(y, group):
    out = torch.empty_like(y)
    dist.all_to_all_single(out, y, group=group)
    return out


def sent(y, group):
    dist.broadcast(y, src=0, group=group)
    return y


for _collective in (summed, joined, shared, exchanged, sent):

    def _cold(collective=_collective) -> object:
        return captured_branch(collective, used=False)

    def _warm(collective=_collective) -> object:
        return captured_branch(collective, used=True)

    _cold.__name__ = f"cold_group_{_collective.__name__}"
    RANKS.before("GD122", USED)(_cold)
    RANKS.after(_warm)


@RANKS.before("GD122", USED)
def custom_sum_in_eager_only() -> object:
    return captured_branch(summed, used=False, eager="none")


@RANKS.after
def custom_sum_of_used_group() -> object:
    return captured_branch(summed, used=True, eager="none")
