"""Finds the barriers between ranks inside the step."""

from __future__ import annotations

from graphdoctor.rules.rule import EventRule
from graphdoctor.values.host_events import Barrier


class BarrierInStep(EventRule):
    """The step waits for the other ranks at a barrier.

    With NCCL, `torch.distributed.barrier()` reduces one number over all ranks, and the CPU waits for
    the result. With `async_op=True` the CPU waits in `work.wait()`. CUDA rejects a wait for a stream
    that is being captured.

    False alarm: the call runs only in debugging or timing code.

    Move the barrier outside the step. Collectives on one stream keep their order without a barrier.
    """

    id = "GD119"
    name = "barrier-in-step"
    effect = "capture-fails"
    makes_host_wait = True
    evidence = (
        "source: ProcessGroupNCCL::barrier and WorkNCCL::wait in PyTorch's ProcessGroupNCCL.cpp; two H200s refused"
        " such a capture, with and without async_op, on 2026-11-22"
    )
    fix = (
        "Move the barrier outside the step. Collectives on one stream keep their order without it."
    )
    event = Barrier
    says = " is a host sync: the CPU waits until every rank arrives."

    @staticmethod
    def bad() -> object:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("nccl")

        def step(x):
            y = x @ x.T
            dist.all_reduce(y)
            dist.barrier()  # <- GD119
            return y.relu()

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("nccl")

        def step(x):
            y = x @ x.T
            dist.all_reduce(y)
            return y.relu()

        return step, (torch.randn(8, 16, device="cuda"),)
