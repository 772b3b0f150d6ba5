"""Every prediction of a workload that nothing was fitted to -> benchmarks/data/predictions_h200_torch2.11.json.

    python benchmarks/truth/predictions.py [--recordings FOLDER] [--keep-figures]     then: make results

The measured steps are those of benchmarks/data: samples_*, results/, families/, kernels_*, eager_*. For each family of
workloads (one model, at whatever size, in whichever precision) the fitted figures are fitted to all other
families and the family is predicted with them: without a GPU for the host that ran it, and each strategy from the
eager step that was measured beside it. Then the ranges' widths are chosen for each family by the errors of the others.
Printed are the figures and widths from all families, which are those to be committed.
Needs transformers, torchvision and diffusers for the larger workloads; takes some ten minutes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, log
from pathlib import Path
from typing import Any

from folds import Fitted, fitted_to, regions_or_whole
from host_figures import Hosts
from kernel_figures import Seen, traced
from measured_steps import (
    Measured,
    calibrated_hosts,
    idle_graphs,
    judges,
    measured_families,
    measured_on_calibrated,
    measured_steps,
    rounds,
)
from recorded_steps import ROOT, UNRECORDED, Step, recorded

from graphdoctor.estimate import NO_CALLS, Observed, launches
from graphdoctor.estimate.fitted import corners_from_eager
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.estimate.graph_memory import graph_memory
from graphdoctor.estimate.predict import corners
from graphdoctor.estimate.ranges import LEAST, Width, capped
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.figures import Range

EVERY = "all"
OUT = ROOT / "benchmarks/data/predictions_h200_torch2.11.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recordings", type=Path, help="keep recordings here (default: nowhere)")
    parser.add_argument(
        "--keep-figures",
        action="store_true",
        help="take the fitted figures from the result that is there, and judge anew",
    )
    args = parser.parse_args()
    profiled = [*measured_steps(), *measured_families()]
    calibrated = list(measured_on_calibrated())
    judging = [*profiled, *_only_traced({one.case for one in profiled}), *calibrated]
    with tempfile.TemporaryDirectory() as temporary:
        steps = _recorded([one.case for one in judging], args.recordings or Path(temporary))
    known = [one for one in judging if one.case in steps]
    folds = _kept() if args.keep_figures else {}
    seen = Seen(steps)
    family_of = {one.case: one.family for one in judging}
    hosts = Hosts(known, steps)
    of_all = seen.figures(but="", family_of=family_of) | hosts.figures()
    every = folds.pop(EVERY, None) or fitted_to(known, steps, of_all)
    print(f"all: {every.text}")
    judged: list[Judged] = []
    for family in sorted(set(family_of.values())):
        own = [one for one in judging if one.family == family and one.case in steps]
        if family not in folds:
            found = seen.figures(but=family, family_of=family_of) | hosts.figures(but=family)
            others = [one for one in known if one.family != family]
            is_fitted = any(one.timed for one in known if one.family == family)
            folds[family] = (
                fitted_to(others, steps, found)
                if is_fitted  # else only kernels and hosts were fitted to it
                else Fitted(every.figures | found)
            )
        print(f"{family}: {folds[family].text}", flush=True)
        for one in own:
            judged += judged_of(one, steps[one.case], folds[family])
    ranged, widths = with_ranges(judged)
    for name, times in widths.items():
        print(f"width of {name}: {times:.2f}")
    result: dict[str, Any] = {
        "families": sorted({one.family for one in judging if one.case in steps}),
        "cases": sorted({one.case for one in judging if one.case in steps}),
        "left_out": UNRECORDED,
        "figures": every.figures,
        "figures_of_folds": {family: fold.figures for family, fold in folds.items()},
        "widths": widths,
        "launches": {
            case: [sum(map(launches, steps[case].iteration.ops)), row.launches]
            for case, row in traced().items()
            if case in steps
        },
        "memory": list(_memory(steps)),
        "rounds": rounds(),
        "rows": [one.row for one in ranged],
    }
    OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}: {len(ranged)} predictions")


def _recorded(cases: Sequence[str], folder: Path) -> dict[str, Step]:
    steps: dict[str, Step] = {}
    for case in dict.fromkeys(cases):
        try:
            steps |= recorded([case], folder)
        except GraphDoctorError as error:  # it needs a library that is not there
            print(f"{case} is left for another time: {error}")
    return steps


def _only_traced(known: set[str]) -> Iterator[Measured]:
    """Steps of which nothing but kernels and graph was measured."""
    for case, row in traced().items():
        if case not in known:
            yield Measured(case, "slow-server", row.eager_us, row.busy_us, (), is_quiet=False)


def _memory(steps: Mapping[str, Step]) -> Iterator[dict[str, Any]]:
    """Pools of whole steps, as their recordings foresee them and as an H200 had them."""
    profile = load_profile("h200")
    for case, row in traced().items():
        if row.pool_bytes and case in steps and "whole" in steps[case].graphed:
            found = graph_memory(steps[case].iteration, profile)
            yield {
                "case": case,
                "inputs_bytes": found.inputs_bytes,
                "pool_bytes": found.pool_bytes,
                "workspace_bytes": found.workspace_bytes,
                "measured_bytes": row.pool_bytes,
            }


def _kept() -> dict[str, Fitted]:
    """The figures of each fold of the last result, and those of all families."""
    found = json.loads(OUT.read_text(encoding="utf-8"))
    folds = {family: Fitted(figures) for family, figures in found["figures_of_folds"].items()}
    return {**folds, EVERY: Fitted(found["figures"])}


INSIDE = 0.8  # of held-out measurements that ranges are to hold
# Predictions from the measured eager step; those of one name share a width.
WHOLE = "whole from eager"
_WIDTHS = {
    "split-step": "split from eager",
    "modules": "parts from eager",
    "segments": "segments from eager",
}


@dataclass(frozen=True)
class Judged:
    """One prediction of a step that nothing was fitted to. `printed` is what that run had said."""

    quantity: str
    width: str
    family: str
    case: str
    host: str
    strategy: str
    corners: Range
    truth: float
    printed: dict[str, float] | None = None
    range: Range | None = None

    @property
    def is_constant(self) -> bool:
        """Whether its range is as wide as any other's, whatever its corners."""
        return self.width in _WIDTHS.values()

    @property
    def needed(self) -> float:
        """By how much the corners are to be stretched to hold the truth, or how wide it is to be, in log."""
        off = log(self.truth / self.corners.mid)
        if self.is_constant:
            return abs(off)
        if abs(off) <= LEAST:
            return 0.0
        end = self.corners.high if off > 0 else self.corners.low
        own = abs(log(end / self.corners.mid))
        return abs(off) / own if own else float("inf")

    @property
    def row(self) -> dict[str, Any]:
        assert self.range is not None
        return {
            "quantity": self.quantity,
            "family": self.family,
            "case": self.case,
            "host": self.host,
            "strategy": self.strategy,
            "predicted": [round(v, 4) for v in (self.range.low, self.range.mid, self.range.high)],
            "measured": round(self.truth, 4),
            "printed": self.printed,
        }


def judged_of(one: Measured, step: Step, fitted: Fitted) -> Iterator[Judged]:
    """Without a GPU for the host that ran it; and each strategy from the measured eager step."""

    def judged(quantity: str, width: str, strategy: str, found: Range, truth: float) -> Judged:
        return Judged(quantity, width, one.family, one.case, one.host, strategy, found, truth)

    if not one.is_fitted:
        for quantity, found, truth in _without_gpu(one, step, fitted):
            yield judged(quantity, quantity, "", found, truth)
    profile = fitted.profile("server")
    for timed in one.timed:
        graphed = step.graphed.get(timed.strategy)
        if graphed is None or one.is_fitted or not judges(one, timed):
            continue
        regions = regions_or_whole(graphed.regions, step)
        observed = Observed(timed.eager_us, timed.busy_us, most_calls=timed.calls)
        found = corners_from_eager(
            step.iteration, profile, regions, observed=observed, calls=graphed.calls
        )
        is_whole = regions is None and graphed.calls == NO_CALLS
        width = WHOLE if is_whole else _WIDTHS.get(timed.strategy, _WIDTHS["modules"])
        made = judged("speed-up from eager", width, timed.strategy, found, timed.speedup)
        yield replace(made, printed=timed.printed)


def _without_gpu(one: Measured, step: Step, fitted: Fitted) -> Iterator[tuple[str, Range, float]]:
    profile = fitted.profile(one.host)
    found = corners(step.iteration, profile)
    is_calibrated = one.host in calibrated_hosts()
    graph_us = _graph_us(one) if "whole" in step.graphed else None
    if not is_calibrated:
        yield "busy", found.busy_us, one.busy_us
        if graph_us is not None:
            yield "graph", found.graph_us, graph_us
    if one.is_quiet:
        yield "eager", found.eager_us, one.eager_us
        if graph_us is not None:
            yield "speed-up", found.speedup, one.eager_us / graph_us


def _graph_us(one: Measured) -> float | None:
    """What the whole step takes as a graph; the samples have been timed on their own host."""
    whole = next((timed for timed in one.timed if timed.strategy == "whole"), None)
    if one.host == "server":
        return whole.step_us if whole is not None else None
    return idle_graphs().get(one.case)


def with_ranges(judged: Sequence[Judged]) -> tuple[list[Judged], dict[str, float]]:
    """Each with its range, as wide as the other families ask for; and the widths that all ask for."""
    ranged = [
        replace(one, range=_width_of(one.width, judged, but=one.family).of(one.corners))
        for one in judged
    ]
    ranged = _capped(ranged)
    names = dict.fromkeys(one.width for one in judged)
    widths = {name: _width_of(name, judged) for name in names}
    return ranged, {name: each.times or each.least for name, each in widths.items()}


def _capped(ranged: Sequence[Judged]) -> list[Judged]:
    """A device is busy for no longer than the step takes."""
    eager = {(one.case, one.host): one.range for one in ranged if one.quantity == "eager"}
    return [
        replace(one, range=capped(one.range, limit))
        if one.quantity == "busy" and one.range and (limit := eager.get((one.case, one.host)))
        else one
        for one in ranged
    ]


def _width_of(name: str, judged: Sequence[Judged], *, but: str = "") -> Width:
    """The least that is to hold `INSIDE` of steps and of families that are not among these.

    Steps of a family err alike, so that the sample is as large as it has families, and one more counts among them: the
    one that nobody has seen. Whether the next step is of a family like any, or of one that has many steps, is not
    known; so a width holds as many steps as it takes, whether each counts alike or each family does.
    """
    others = [one for one in judged if one.width == name and one.family != but]
    alike = Counter(one.family for one in others)
    share = min(1.0, ceil(INSIDE * (len(alike) + 1)) / len(alike))
    by_step = [(one.needed, 1.0 / len(others)) for one in others]
    by_family = [(one.needed, 1.0 / len(alike) / alike[one.family]) for one in others]
    least = max(_quantile(by_step, share), _quantile(by_family, share))
    return Width(0.0, least=least) if name in _WIDTHS.values() else Width(least)


def _quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """The least value such that those up to it weigh the share; the weights sum to 1."""
    ordered = sorted(weighted)
    reached = accumulate(weight for _, weight in ordered)
    return next(
        (
            value
            for (value, _), so_far in zip(ordered, reached, strict=True)
            if so_far > share - 1e-9
        ),
        ordered[-1][0],
    )


if __name__ == "__main__":
    main()
