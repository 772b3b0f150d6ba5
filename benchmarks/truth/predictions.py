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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from folds import Fitted, fitted_to
from host_figures import Hosts
from kernel_figures import Seen, traced
from measured_steps import (
    Measured,
    measured_families,
    measured_on_calibrated,
    measured_steps,
    rounds,
)
from recorded_steps import ROOT, UNRECORDED, Step, recorded
from residuals import Judged, judged_of, with_ranges

from graphdoctor.estimate import launches
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.estimate.graph_memory import graph_memory
from graphdoctor.values.errors import GraphDoctorError

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


if __name__ == "__main__":
    main()
