"""Chooses the strategies to compare, in their order, and their shares of the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphdoctor.strategies import STRATEGIES
from graphdoctor.strategies.strategy import Strategy
from graphdoctor.values.errors import UsageError
from graphdoctor.values.recording import Iteration
from graphdoctor.values.spelling import nearest

COMPARATORS = ("reduce-overhead", "cudagraphs")  # on a GPU, unless others are asked for


def check_names(names: Sequence[str] | None) -> None:
    """Raises UsageError for the first name that no strategy has."""
    known = [strategy.name for strategy in STRATEGIES]
    for name in names or ():
        if name not in known:
            meant = nearest(name, (*known, "none"))
            raise UsageError(
                f"there is no strategy {name!r}, did you mean {meant!r}? (there are"
                f" {', '.join(known)}, and none to try none)"
            )


def chosen(names: Sequence[str] | None, *, is_emulated: bool) -> tuple[Strategy, ...]:
    """Those that were asked for; None asks for ours, and on a GPU for some to compare them with."""
    if names is None:
        return tuple(
            strategy
            for strategy in STRATEGIES
            if strategy.is_ours or (strategy.name in COMPARATORS and not is_emulated)
        )
    return tuple(strategy for strategy in STRATEGIES if strategy.name in names)


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


def budget_for(
    strategies: Sequence[Strategy], iteration: Iteration, *, spent_s: float = 0.0
) -> str:
    """A budget that gives all of these a chance after `spent_s` of it, as `--budget` takes it: "4m"."""
    seconds = spent_s + sum(needed_s(strategy, iteration) for strategy in strategies)
    minutes = -(-seconds // 60)
    return f"{minutes:.0f}m"
