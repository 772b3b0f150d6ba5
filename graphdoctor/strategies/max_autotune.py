"""A step -> the same step with its models through torch.compile, which measures kernels to choose."""

from __future__ import annotations

from graphdoctor.strategies.compilers.compiler import Compiler


class MaxAutotune(Compiler):
    """The fastest of several kernels for each matrix product, inside CUDA graphs; takes minutes."""

    name = "max-autotune"
    title = 'torch.compile(mode="max-autotune")'
    mode = "max-autotune"
    has_graphs = True
