"""Finds the process groups that the step uses first in a capture."""

from __future__ import annotations

from graphdoctor.rules.rule import EventRule
from graphdoctor.values.host_events import ColdGroup


class ColdProcessGroup(EventRule):
    """A process group is first used inside the capture.

    NCCL creates the communicator of a process group in the first collective: it allocates memory and
    connects the ranks. CUDA rejects both during capture. Eager warmup steps do not warm up a group that
    only the captured branch uses.

    False alarm: other code has already created the communicator, and graphdoctor did not see that call.

    Run a collective on the group before the capture. Or pass `device_id` to `init_process_group()`, so
    that PyTorch creates communicators immediately.
    """

    id = "GD122"
    name = "cold-process-group"
    effect = "capture-fails"
    evidence = (
        "source: ProcessGroupNCCL::initNCCLComm in PyTorch's ProcessGroupNCCL.cpp; two H200s refused such a capture"
        " on 2026-11-22, and took one of a group that had been used"
    )
    fix = "Run one collective on the group before the capture."
    event = ColdGroup
    says = " is the first call on its group: NCCL would create the communicator during the capture."

    @staticmethod
    def bad() -> object:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("nccl")
        group = dist.new_group([*range(dist.get_world_size())])

        def step(x):
            y = x @ x.T
            if torch.cuda.is_current_stream_capturing():
                dist.all_reduce(y, group=group)  # <- GD122
            else:
                dist.all_reduce(y)
            return y.relu()

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("nccl")
        group = dist.new_group([*range(dist.get_world_size())])
        dist.all_reduce(torch.ones(1, device="cuda"), group=group)

        def step(x):
            y = x @ x.T
            if torch.cuda.is_current_stream_capturing():
                dist.all_reduce(y, group=group)
            else:
                dist.all_reduce(y)
            return y.relu()

        return step, (torch.randn(8, 16, device="cuda"),)
