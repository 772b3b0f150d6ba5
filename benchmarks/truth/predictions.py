"""Every prediction of a workload that nothing was fitted to -> benchmarks/data/predictions_h200_torch2.11.json.

    python benchmarks/truth/predictions.py [--recordings FOLDER] [--add]     then: make results

The measured steps are those of benchmarks/data/samples_* and benchmarks/data/results/. For each family of
workloads (one model, at whatever size, in whichever precision) the fitted figures are fitted to all other
families and the family is predicted with them: without a GPU for the host that ran it, and from its
measured eager step. Then the ranges' widths are chosen for each family by the errors of the others.
Printed are the figures and widths from all families, which are those to be committed.
Needs transformers and torchvision for the larger workloads; takes some ten minutes. `--add` only judges
families that the result has not yet, by the figures and widths that it has, in a few seconds each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from folds import Fitted, fitted_to
from measured_steps import Measured, measured_families, measured_since, measured_steps
from recorded_steps import ROOT, UNRECORDED, Step, recorded
from residuals import Judged, judged_of, with_ranges, with_widths

from graphdoctor.estimate import launches
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
    parser.add_argument(
        "--add", action="store_true", help="judge families that were measured since, and no others"
    )
    args = parser.parse_args()
    measured = list(measured_steps())
    since = [*measured_since({one.family for one in measured}), *measured_families()]
    if args.add:
        _add(since, args.recordings)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.recordings or Path(temporary)
        steps = recorded([one.case for one in (*measured, *since)], folder)
    known = [one for one in measured if one.case in steps]
    families = sorted({one.family for one in known})
    folds = _kept() if args.keep_figures else {}
    judged: list[Judged] = []
    for family in families:
        others = [one for one in known if one.family != family]
        folds[family] = folds.get(family) or fitted_to(others, steps)
        print(f"{family}: {folds[family].text}", flush=True)
        own = (one for one in known if one.family == family)
        judged += _judged(own, steps, folds[family])
    every = folds.pop(EVERY, None) or fitted_to(known, steps)
    print(f"all: {every.text}")
    judged += _judged(since, steps, every)
    ranged, widths = with_ranges(judged)
    for name, times in widths.items():
        print(f"width of {name}: {times:.2f}")
    _write(ranged, widths, every, folds, [*measured, *since])


def _add(since: Sequence[Measured], recordings: Path | None) -> None:
    """Judge what the result lacks; nothing in it is fitted anew."""
    found = json.loads(OUT.read_text(encoding="utf-8"))
    steps: dict[str, Step] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for case in {one.case for one in since} - set(found["cases"]):
            try:
                steps |= recorded([case], recordings or Path(temporary))
            except GraphDoctorError as error:  # it needs a library that is not there
                print(f"{case} is left for another time: {error}")
    new = [one for one in since if one.case in steps]
    judged = list(_judged(new, steps, Fitted(found["figures"])))
    found["rows"] += [one.row for one in with_widths(judged, found["widths"])]
    found["launches"] = {
        one.case: [sum(map(launches, steps[one.case].iteration.ops)), one.launches]
        for one in new
        if not one.is_quiet
    }
    found["families"] = sorted({*found["families"], *(one.family for one in new)})
    found["cases"] = sorted({*found["cases"], *(one.case for one in new)})
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"added {len(judged)} predictions of {len(new)} steps")


def _kept() -> dict[str, Fitted]:
    """The figures of each fold of the last result, and those of all families."""
    found = json.loads(OUT.read_text(encoding="utf-8"))
    folds = {family: Fitted(figures) for family, figures in found["figures_of_folds"].items()}
    return {**folds, EVERY: Fitted(found["figures"])}


def _judged(own: Iterable[Measured], steps: dict[str, Step], fitted: Fitted) -> Iterator[Judged]:
    for one in own:
        yield from judged_of(one, steps[one.case], fitted)


def _write(
    ranged: Sequence[Judged],
    widths: dict[str, float],
    every: Fitted,
    folds: dict[str, Fitted],
    measured: Sequence[Measured],
) -> None:
    found: dict[str, Any] = {
        "families": sorted({one.family for one in measured}),
        "cases": sorted({one.case for one in measured}),
        "left_out": UNRECORDED,
        "figures": every.figures,
        "figures_of_folds": {family: fold.figures for family, fold in folds.items()},
        "widths": widths,
        "rows": [one.row for one in ranged],
    }
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}: {len(ranged)} predictions")


if __name__ == "__main__":
    main()
