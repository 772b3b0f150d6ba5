"""A plan, and what calls met since -> sentences for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphdoctor.captured.plan import CapturePlan

_SHOWN = 8


def explain(
    name: str,
    plan: CapturePlan,
    *,
    replayed: int,
    part_replays: int,
    fallbacks: Mapping[str, int],
) -> str:
    """One sentence a line: what is replayed, what is not and why, and which calls ran eagerly."""
    return "\n".join((*_how(name, plan), *_why(plan), *_since(replayed, part_replays, fallbacks)))


def _how(name: str, plan: CapturePlan) -> Iterator[str]:
    if plan.how == "whole":
        passes = "graph" if plan.mode == "inference" else "graph for each of forward and backward"
        yield f"{name} is replayed as one {passes}, of {_count(plan.launches, 'launch', 'es')}."
    elif plan.how == "modules":
        yield (
            f"{_count(len(plan.modules), 'module')} of {name} {_are(len(plan.modules))} replayed, "
            f"with {plan.captured_launches} of {_count(plan.launches, 'launch', 'es')}; "
            f"the rest runs eagerly: {', '.join(plan.modules[:_SHOWN])}"
            + (", ..." if len(plan.modules) > _SHOWN else ".")
        )
    else:
        yield f"{name} runs eagerly."


def _why(plan: CapturePlan) -> Iterator[str]:
    for obstacle in plan.obstacles:
        yield f"Not as one graph: {obstacle.rstrip('.')}."


def _since(replayed: int, part_replays: int, fallbacks: Mapping[str, int]) -> Iterator[str]:
    if replayed:
        yield f"{_count(replayed, 'call')} of it {_was(replayed)} replayed."
    if part_replays:
        yield f"{_count(part_replays, 'call')} of graphed modules {_was(part_replays)} replayed."
    for reason, count in sorted(fallbacks.items(), key=lambda item: -item[1]):
        yield f"{_count(count, 'call')} ran eagerly: {reason.rstrip('.')}."


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
