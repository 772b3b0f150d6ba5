"""Finds the DistributedDataParallel modules of a step that were made on the default stream."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from graphdoctor.rules.rule import Hit, RecordingRule, at_event, at_op
from graphdoctor.values.host_events import DdpOnDefaultStream
from graphdoctor.values.recording import Recording

_SAYS = " was created on the default stream, which its backward pass reaches during the capture."


class DefaultStreamDdp(RecordingRule):
    """A DistributedDataParallel module was created on the default stream.

    DistributedDataParallel stores the AccumulateGrad nodes of its parameters. Each node runs on the
    stream on which it was created. During capture, which uses another stream, the backward pass reaches
    the default stream, and CUDA rejects that.

    False alarm: the captured step runs no backward pass of the module.

    Create the module on a side stream: `with torch.cuda.stream(torch.cuda.Stream()): ddp = DDP(model)`.
    Run the first 11 steps on a side stream before the capture, because DDP measures its first ten steps
    with CUDA events.
    """

    id = "GD121"
    name = "default-stream-ddp"
    effect = "capture-fails"
    evidence = (
        "documentation: PyTorch's notes on CUDA graphs, 'Usage with DistributedDataParallel'; two H200s refused such a"
        " capture, and took the same step with the module made on a side stream, on 2026-11-22"
    )
    fix = (
        "Create the module inside `with torch.cuda.stream(side):`, and run 11 steps before "
        "the capture."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        """The forward pass of such a module; the backward passes after it are in its wake."""
        for iteration in recording.captured:
            made = iteration.events_of(DdpOnDefaultStream)
            for event in made:
                yield at_event(iteration.index, event, f"{event.name}{_SAYS}")
            for op in iteration.ops[made[0].op_index :] if made else ():
                if op.phase == "backward":
                    wake = at_op(iteration.index, op, f"{made[0].name}{_SAYS}")
                    place, stack = made[0].location, made[0].stack
                    yield replace(wake, follows=True, location=place, stack=stack)

    @staticmethod
    def bad() -> object:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        if not dist.is_initialized():
            dist.init_process_group("nccl")
        model = DistributedDataParallel(torch.nn.Linear(16, 4, device="cuda"))

        def step(x):
            model.zero_grad()
            loss = model(x).square().mean()  # <- GD121
            loss.backward()
            return loss

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        if not dist.is_initialized():
            dist.init_process_group("nccl")
        with torch.cuda.stream(torch.cuda.Stream()):
            model = DistributedDataParallel(torch.nn.Linear(16, 4, device="cuda"))

        def step(x):
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return step, (torch.randn(8, 16, device="cuda"),)
