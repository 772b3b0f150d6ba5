"""Predictions from public eager traces beside traces of the same step captured -> benchmarks/data/trace_pairs.json.

    python benchmarks/truth/trace_pairs.py CLONE     then: make results

CLONE: a clone of leimao/PyTorch-CUDA-Graph-Capture-Examples, which has two recordings of one training step on an RTX
5080, one a commit: eager (in two scripts), the model in graphs and the rest eager, and the whole step as one graph.
The captured trace is the truth: its device is busy for 98 % of the time, so the profiler does not lengthen it.
Its partial capture trains less of the model, as the graph's input asks for no gradient, and is not judged.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphdoctor.trace.explain.before_after import EVERY_ROW, compare_traces
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.trace.read.file import parse_trace
from graphdoctor.values.trace import TraceReport

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks/data/trace_pairs.json"
RECORDINGS = {"ce7d91f": "", "023e535": "traces/"}  # commits, and where their traces are
TRUTH = "trace_with_manual_capture.json"
BEFORE = {
    "trace_without_manual_capture.json": "eager",
    "trace_without_make_graphed_callables.json": "eager, second script",
    "trace_with_make_graphed_callables.json": "model in graphs",
}


def main() -> None:
    rows = [row for commit in RECORDINGS for row in _rows(Path(sys.argv[1]), commit)]
    OUT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        low, mid, high = row["predicted_us"]
        print(f"{row['commit']} {row['trace']}: {mid} ({low} to {high}), {row['measured_us']} us")


def _rows(clone: Path, commit: str) -> Iterator[dict[str, Any]]:
    truth = _explained(clone, commit, TRUTH)
    for name, what in BEFORE.items():
        before = _explained(clone, commit, name)
        found = before.prediction
        if found is None:
            sys.exit(f"{commit} {name}: {before.no_prediction}")
        predicted = (found.graph_us.low, found.graph_us.mid, found.graph_us.high)
        terms = {term.name: term for term in compare_traces(before, truth).terms}
        shared = terms["kernels in both traces"]
        busy = [one.device_busy_ns / 1e3 / one.steps_counted for one in (before, truth)]
        slower = shared.after_us - shared.before_us
        yield {
            "commit": commit,
            "trace": what,
            "profiled_us": round(before.step_us, 1),
            "predicted_us": [round(value, 1) for value in predicted],
            "measured_us": round(truth.step_us, 1),
            # Of the captured trace, beyond what the device did in the first one.
            "slower_kernels_us": round(slower, 1),
            "other_work_us": round(busy[1] - busy[0] - slower, 1),
            "idle_us": round(truth.step_us - busy[1], 1),
        }


def _explained(clone: Path, commit: str, name: str) -> TraceReport:
    shown = subprocess.run(
        ["git", "-C", str(clone), "show", f"{commit}:{RECORDINGS[commit]}{name}"],
        stdout=subprocess.PIPE,
        check=True,
    )
    trace = parse_trace(shown.stdout, name=name)
    return explain_trace(trace, Path(name), TraceOptions(rows=EVERY_ROW))


if __name__ == "__main__":
    main()
