"""The samples' measured times on a GPU -> what graphdoctor predicts for them without one, side by side.

    python benchmarks/truth/prediction_error.py [--gpu h200] [--measured benchmarks/data/samples_h200_torch2.11.jsonl]

The measured steps are those of benchmarks/gpu/samples_and_rules.py. A prediction is of the recorded operators
alone: no trace and no GPU go into it. Printed: middle figures, and whether the range holds the truth.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

from graphdoctor.pipeline import analyze_target
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Range

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks/data/samples_h200_torch2.11.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--measured", type=Path, default=MEASURED)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.measured.read_text().splitlines()]
    errors: dict[str, list[float]] = {"eager": [], "graph": [], "speed-up": []}
    print(
        f"{'sample':30} {'eager us':>16} {'graph us':>16} {'speed-up':>14}  (predicted / measured)"
    )
    for row in rows:
        truth = row.get("measurement")
        if truth is None:
            continue
        spec = str(ROOT / row["case"].removeprefix("sample:"))
        options = AnalyzeOptions(device="emulated", gpu=args.gpu, strategies=())
        found = analyze_target(spec, options, lambda doing: None).estimate
        assert found is not None
        cells = []
        for name, guess, value in (
            ("eager", found.eager_us, truth["eager_us"]),
            ("graph", found.graph_us, truth["graph_us"]),
            ("speed-up", found.speedup, truth["speedup"]),
        ):
            errors[name].append(abs(guess.mid / value - 1))
            cells.append(f"{guess.mid:7.4g}/{value:<7.4g}{_inside(guess, value)}")
        print(f"{Path(spec).name:30} {' '.join(cells)}")
    for name, values in errors.items():
        print(f"median error of {name}: {median(values):.0%}, largest {max(values):.0%}")


def _inside(guess: Range, value: float) -> str:
    return "=" if guess.low <= value <= guess.high else "!"


if __name__ == "__main__":
    main()
