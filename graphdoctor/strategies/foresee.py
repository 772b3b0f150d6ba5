"""Foresees a strategy's row before it is tried: whether it fits, and what it would bring."""

from __future__ import annotations

from msgspec.structs import replace

from graphdoctor.estimate import Calls, Observed, Regions, estimate, fitted_speedup, launches
from graphdoctor.estimate.fusion import with_fusion
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.graphs.cause import in_words, location_of
from graphdoctor.strategies.strategy import (
    Known,
    Strategy,
)
from graphdoctor.values.recording import Iteration
from graphdoctor.values.speed import StrategyOutcome

_NEEDS_GPU = "planned only: trying it takes a real GPU"
_NEEDS_KERNELS = (
    "planned only: its kernels need a real GPU and are not verified here; {same} tries the same graphs"
    " with eager's"
)


def foresee(
    strategy: Strategy, known: Known, profile: DeviceProfile, *, observed: Observed | None = None
) -> StrategyOutcome:
    """The row of a strategy that was not tried: "planned" with its prediction, or "unfit".

    Where the eager step was `observed` on a GPU, the prediction goes out from there. A strategy that
    fails to answer is "failed", with its error in words.
    """
    same = strategy.with_eager_kernels
    row = StrategyOutcome(
        strategy=strategy.name,
        title=strategy.title,
        is_ours=strategy.is_ours,
        status="planned",
        reason=_NEEDS_KERNELS.format(same=same) if same else _NEEDS_GPU,
    )
    try:
        if reason := strategy.reason_against(known):
            return replace(row, status="unfit", reason=reason)
        regions = strategy.regions(known)
        calls = strategy.calls(known)
        row = replace(row, code=strategy.code(known), plan=strategy.plan(known))
    except Exception as error:
        reason = in_words(error)
        return replace(row, status="failed", reason=reason, location=location_of(error))
    if regions is None:
        return row
    row = replace(row, launches_eager=float(sum(map(launches, known.iteration.ops))))
    found = predicted_for(row, regions, calls, known, profile, observed=observed)
    if not same or found.predicted is None:
        return found
    graphs = _all_or(regions, known.iteration)
    fused = with_fusion(found.predicted, known.iteration, profile, graphs)
    return replace(found, predicted=fused)


def predicted_for(
    row: StrategyOutcome,
    regions: Regions,
    calls: Calls,
    known: Known,
    profile: DeviceProfile,
    *,
    observed: Observed | None,
) -> StrategyOutcome:
    """The row with what these graphs would bring: those foreseen, or those that were made."""
    step, graphs = known.iteration, _all_or(regions, known.iteration)
    if observed is None:
        speedup = estimate(step, profile, graphs, calls=calls).speedup
    else:
        speedup = fitted_speedup(step, profile, graphs, observed=observed, calls=calls)
    return replace(row, predicted=speedup, captured_share=share_of(regions, step))


def share_of(regions: Regions, iteration: Iteration) -> float:
    """The share of an eager step's launches that lie in the regions; 0.0 of a step without any."""
    every = sum(map(launches, iteration.ops))
    inside = {index for region in regions for index in region}
    taken = sum(launches(op) for op in iteration.ops if op.index in inside)
    return taken / every if every else 0.0


def _all_or(regions: Regions, iteration: Iteration) -> Regions | None:
    """None, which asks for the whole step, where one graph holds all that is launched."""
    if len(regions) != 1:
        return regions
    inside = set(regions[0])
    return None if all(op.index in inside for op in iteration.ops if launches(op)) else regions
