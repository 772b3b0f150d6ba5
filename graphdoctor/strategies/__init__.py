"""Ways to run a step faster, tried, verified and measured side by side."""

from __future__ import annotations

from graphdoctor.strategies.compilers.compiler import (
    Compile,
    CudaGraphs,
    MaxAutotune,
    ReduceOverhead,
)
from graphdoctor.strategies.compilers.in_graph import CompiledSplit, CompiledWhole
from graphdoctor.strategies.compilers.scripted import Script, ScriptGraph
from graphdoctor.strategies.modules import Modules
from graphdoctor.strategies.segments import Segments
from graphdoctor.strategies.split_step import SplitStep
from graphdoctor.strategies.strategy import Strategy
from graphdoctor.strategies.whole import Whole

# Ours first, those that ask for the least before the others; then what they are compared with.
STRATEGIES: tuple[Strategy, ...] = (
    Whole(),
    SplitStep(),
    Modules(),
    Segments(),
    CompiledWhole(),
    CompiledSplit(),
    Script(),
    ScriptGraph(),
    Compile(),
    ReduceOverhead(),
    MaxAutotune(),
    CudaGraphs(),
)
