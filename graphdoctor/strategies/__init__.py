"""Ways to run a step faster, tried, verified and measured side by side."""

from __future__ import annotations

from graphdoctor.strategies.compile import Compile
from graphdoctor.strategies.compiled_split import CompiledSplit
from graphdoctor.strategies.compiled_whole import CompiledWhole
from graphdoctor.strategies.cudagraphs import CudaGraphs
from graphdoctor.strategies.max_autotune import MaxAutotune
from graphdoctor.strategies.modules import Modules
from graphdoctor.strategies.reduce_overhead import ReduceOverhead
from graphdoctor.strategies.script import Script
from graphdoctor.strategies.script_graph import ScriptGraph
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
