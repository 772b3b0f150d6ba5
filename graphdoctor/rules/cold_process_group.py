"""A recording -> the process groups that the step uses first in a capture."""

from __future__ import annotations

from graphdoctor.rules.rule import EventRule
from graphdoctor.values.host_events import ColdGroup


class ColdProcessGroup(EventRule):
    """A process group is first used inside the capture.

    NCCL makes a group's communicator when its first collective runs: it allocates, and the ranks connect. CUDA
    refuses that while a graph is recorded. A group that only the captured path uses is not warmed up by
    eager steps.

    It is a false alarm where the communicator is there already, made by something that graphdoctor did not
    see run.

    Let a collective run on the group before the capture, or give `init_process_group()` a `device_id`, with
    which PyTorch makes communicators at once.
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
    says = " is the first call on its group, whose communicator NCCL would make in the capture."

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
