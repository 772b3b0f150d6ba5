"""A step -> the same step with its models through torch.compile, in CUDA graphs."""

from __future__ import annotations

from graphdoctor.strategies.compilers.compiler import Compiler


class ReduceOverhead(Compiler):
    """Inductor's kernels inside CUDA graphs that torch records and checks."""

    name = "reduce-overhead"
    title = 'torch.compile(mode="reduce-overhead")'
    mode = "reduce-overhead"
    has_graphs = True
