"""A strategy and a recorded step -> about how long trying it takes, to share out a budget of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphdoctor.strategies.strategy import Strategy
from graphdoctor.values.recording import Iteration

# Seen on an H200 with 16 cores (torch 2.11.0, 2026-11-20; benchmarks/data/results): Inductor took from
# 6 s for 31 operators to 35 s for the 2,289 of a training step of BERT; warming up, proving and timing
# took the rest. A host with fewer cores takes longer.
_TRIED_S = 10.0
_COMPILED_S, _COMPILED_PER_OPERATOR_S = 25.0, 0.012
_CHANCE = 1.5  # times what is expected, before it is taken to hang


def needed_s(strategy: Strategy, iteration: Iteration) -> float:
    """Wall seconds that one try is expected to take, its process and its timing included."""
    if not strategy.compiles:
        return _TRIED_S
    return _COMPILED_S + _COMPILED_PER_OPERATOR_S * len(iteration.ops)


def limit_s(
    strategy: Strategy, later: Iterable[Strategy], iteration: Iteration, *, left_s: float
) -> float:
    """The most that it may take of what is left: half of it, or what a compiler needs to finish.

    What comes later keeps the rest; the last one has all.
    """
    if not any(True for _ in later):
        return left_s
    if not strategy.compiles:
        return left_s / 2
    return min(left_s, max(left_s / 2, _CHANCE * needed_s(strategy, iteration)))


def budget_for(strategies: Sequence[Strategy], iteration: Iteration) -> str:
    """A budget that gives all of these a chance, as `--budget` takes it: "4m"."""
    seconds = sum(needed_s(strategy, iteration) for strategy in strategies)
    minutes = -(-seconds // 60)
    return f"{minutes:.0f}m"
