"""A step -> the same step with its models through torch.compile, by its default mode."""

from __future__ import annotations

from graphdoctor.strategies.compilers.compiler import Compiler


class Compile(Compiler):
    """Inductor's kernels, launched by Python: fewer of them, and no CUDA graph."""

    name = "compile"
    title = "torch.compile"
