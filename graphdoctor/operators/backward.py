"""Operators whose backward waits for the device; data, no torch.

ATen's formulas for these look for zeros in the input with nonzero(), and take a longer way without it
while any dispatch mode is active: a recording is made under one, and never shows the wait. Measured on
an NVIDIA H200, torch 2.11.0, 2026-11-20: captures of both are refused, with "operation not permitted
when stream is capturing" (benchmarks/data/opinfo_h200_torch2.11.jsonl.gz).
"""

from __future__ import annotations

from graphdoctor.values.recording import Op

WAITING_BACKWARD = frozenset({"prod", "cumprod"})
# autograd's nodes of the same operators, by the name that a running node tells
WAITING_NODES = frozenset({"ProdBackward0", "ProdBackward1", "CumprodBackward0"})


def waits_in_backward(forward: Op) -> bool:
    """Whether the backward of this operator waits; that of a single number does not look at it."""
    return forward.base_name in WAITING_BACKWARD and any(use.shape for use in forward.inputs)
