"""A gradient that is given back after a capture -> where a replay of the backward pass adds to, by torch alone.

    python benchmarks/gpu/freed_gradient.py OUT.json

What rule GD205 says of gradients that another step left: the graph goes on adding to their memory, which may
be another tensor's by then.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

import torch

_COUNT = 1 << 20


def main() -> None:
    stream = torch.cuda.Stream()
    parameter = torch.nn.Parameter(torch.randn(_COUNT, device="cuda"))
    factor = torch.ones(_COUNT, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(3):
            (parameter * factor).sum().backward()
    torch.cuda.synchronize()
    assert parameter.grad is not None
    address = parameter.grad.data_ptr()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        (parameter * factor).sum().backward()
    parameter.grad = None
    with torch.cuda.stream(
        stream
    ):  # the allocator hands a block out on the stream that it was made on
        others = [torch.zeros(_COUNT, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    reusing = [other for other in others if other.data_ptr() == address]
    graph.replay()
    torch.cuda.synchronize()
    found = {
        "gpu": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "tensors_in_its_memory": len(reusing),
        "largest_value_after_a_replay": max(
            (other.max().item() for other in reusing), default=None
        ),
        "date": datetime.date.today().isoformat(),
    }
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
