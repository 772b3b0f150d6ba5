"""What was asked for, and the kind of device -> the strategies to compare, in the order of STRATEGIES."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.strategies import STRATEGIES
from graphdoctor.strategies.strategy import Strategy
from graphdoctor.values.errors import UsageError
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
