"""A strategy and what is known of a step -> its row before it is tried: does it fit, what would it bring."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from graphdoctor.estimate import Observed, estimate, fitted_speedup, launches
from graphdoctor.estimate.fusion import with_fusion
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.graphs.cause import in_words, location_of
from graphdoctor.strategies.strategy import (
    Calling,
    Known,
    OtherKernels,
    Planning,
    Regions,
    Strategy,
)
from graphdoctor.values.recording import Iteration
from graphdoctor.values.report import Range, StrategyOutcome

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
    row = StrategyOutcome(
        strategy=strategy.name,
        title=strategy.title,
        is_ours=strategy.is_ours,
        status="planned",
        reason=_reason(strategy),
    )
    try:
        if reason := strategy.reason_against(known):
            return replace(row, status="unfit", reason=reason)
        regions = strategy.regions(known)
        host_work = strategy.host_work(known) if isinstance(strategy, Calling) else 0.0
        row = replace(row, code=strategy.code(known), plan=_plan(strategy, known))
    except Exception as error:
        reason = in_words(error)
        return replace(row, status="failed", reason=reason, location=location_of(error))
    if regions is None:
        return row
    fuses = isinstance(strategy, OtherKernels)
    return replace(
        row,
        predicted=_Prediction(known.iteration, profile, host_work, observed, fuses).of(regions),
        captured_share=share_of(regions, known.iteration),
        launches_eager=float(sum(map(launches, known.iteration.ops))),
    )


def _reason(strategy: Strategy) -> str:
    if isinstance(strategy, OtherKernels):
        return _NEEDS_KERNELS.format(same=strategy.with_eager_kernels)
    return _NEEDS_GPU


@dataclass(frozen=True, slots=True)
class _Prediction:
    """What a step with graphs is predicted from."""

    iteration: Iteration
    profile: DeviceProfile
    host_work: float
    observed: Observed | None
    fuses: bool

    def of(self, regions: Regions) -> Range:
        step, graphs = self.iteration, _all_or(regions, self.iteration)
        found = self._of_eager_kernels(graphs)
        return with_fusion(found, step, self.profile, graphs) if self.fuses else found

    def _of_eager_kernels(self, graphs: Regions | None) -> Range:
        step = self.iteration
        if self.observed is None:
            return estimate(step, self.profile, graphs, host_work=self.host_work).speedup
        return fitted_speedup(
            step, self.profile, graphs, observed=self.observed, host_work=self.host_work
        )


def _plan(strategy: Strategy, known: Known) -> str:
    return strategy.plan(known) if isinstance(strategy, Planning) else ""


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
