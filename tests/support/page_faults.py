"""`python -m tests.support.page_faults HOW`: how many pages three runs of a step take anew from the system.

HOW is "thrifty", or anything else for a process as it is.
"""

from __future__ import annotations

import resource
import sys

import torch

from graphdoctor.device.processes.thrift import be_thrifty


def main() -> int:
    if sys.argv[1] == "thrifty":
        be_thrifty()
    torch.set_num_threads(1)
    x = torch.ones(2 << 20)
    _step(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        _step(x)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return 0


def _step(x: torch.Tensor) -> None:
    made = [x + number for number in range(12)]
    made.clear()
