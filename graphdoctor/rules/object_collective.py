"""Finds the Python objects that travel between ranks inside the step."""

from __future__ import annotations

from graphdoctor.rules.rule import EventRule
from graphdoctor.values.host_events import ObjectsExchanged


class ObjectCollective(EventRule):
    """The step sends Python objects between ranks.

    With NCCL, `broadcast_object_list`, `all_gather_object` and similar calls pickle each object, copy
    its bytes to the GPU, send them, and read them on the CPU. Each of these copies is rejected during
    capture.

    False alarm: the call does not run in production, for example if it collects data for a log.

    Send tensors with a tensor collective. Move what the CPU needs outside the step, or send it through
    a group of `new_group(backend="gloo")` if it is the same in every step.
    """

    id = "GD120"
    name = "object-collective"
    effect = "capture-fails"
    makes_host_wait = True
    evidence = (
        "source: _object_to_tensor and _tensor_to_object in PyTorch's distributed_c10d.py; two H200s refused to"
        " capture broadcast_object_list and all_gather_object on 2026-11-22"
    )
    fix = "Send a tensor instead of an object, or move the call outside the step."
    event = ObjectsExchanged
    says = " copies pickled objects to the GPU and reads them on the CPU."

    @staticmethod
    def bad() -> object:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("nccl")

        def step(x):
            scales = [2.0]
            dist.broadcast_object_list(scales)  # <- GD120
            return x * scales[0]

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("nccl")

        def step(x):
            scale = torch.full((), 2.0, device="cuda")
            dist.broadcast(scale, src=0)
            return x * scale

        return step, (torch.randn(8, 16, device="cuda"),)
