"""A step -> the same step with its models through Dynamo, eager's kernels in torch's CUDA graphs."""

from __future__ import annotations

from graphdoctor.strategies.compilers.compiler import Compiler


class CudaGraphs(Compiler):
    """Eager's own kernels, in the CUDA graphs of torch.compile: the nearest to ours of all."""

    name = "cudagraphs"
    title = 'torch.compile(backend="cudagraphs")'
    backend = "cudagraphs"
    has_graphs = True
