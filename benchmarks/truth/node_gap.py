"""Measured graphs on a GPU -> the gap between their nodes, and how well one gap predicts the others' time.

    python benchmarks/truth/node_gap.py [--measured FILE.jsonl] [--gap LOW MID HIGH] [TRACE ...]

FILE.jsonl is what benchmarks/gpu/samples_and_rules.py wrote: for each sample the time of a replay, measured, and the
estimate that the eager trace gave, whose ends were made with the gaps of the profile of that day
(`--old-gap`, `--old-launch`): with them the number of nodes and the rest of the time are told
apart again. The gap of one sample is then (measured - busy - rest) / (nodes - 1). Since one gap is
chosen from the same samples, each is also predicted with the median gap of all the others.
TRACE: profiler traces of graphs; gaps between the kernels of one launch are shown, as they were traced.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from graphdoctor.trace import launch_of, read_trace
from graphdoctor.trace.api import is_graph_launch
from graphdoctor.trace.explain.gaps import gaps

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks/data/samples_h200_torch2.11.jsonl"


@dataclass(frozen=True)
class Sample:
    """One captured step; `rest_us` is the middle prediction without gaps between nodes."""

    name: str
    nodes: int
    busy_us: float
    rest_us: float
    before_us: float  # predicted when it was measured
    graph_us: float  # measured

    @property
    def gap_us(self) -> float:
        return (self.graph_us - self.busy_us - self.rest_us) / max(1, self.nodes - 1)

    def predicted_us(self, gap_us: float) -> float:
        return self.busy_us + self.rest_us + (self.nodes - 1) * gap_us

    def error(self, predicted_us: float) -> float:
        return predicted_us / self.graph_us - 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="*", metavar="TRACE")
    parser.add_argument("--measured", type=Path, default=MEASURED)
    parser.add_argument("--old-gap", type=float, nargs=3, default=(0.4, 1.0, 1.8))
    parser.add_argument("--old-launch", type=float, nargs=3, default=(2.5, 7.0, 15.0))
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.measured.read_text().splitlines()]
    samples = list(_samples(rows, args.old_gap, args.old_launch))
    _show(samples)
    for path in args.traces:
        _show_trace(path)


def _samples(
    rows: Iterable[dict[str, Any]], gap: Sequence[float], launch: Sequence[float]
) -> Iterable[Sample]:
    for row in rows:
        truth, guess = row.get("measurement"), row.get("estimate")
        if truth is None or guess is None or guess["basis"] != "measured":
            continue
        graph, busy = guess["graph_us"], guess["device_busy_us"]["mid"]
        spread = graph["high"] - graph["mid"] - (launch[2] - launch[1])
        between = round(spread / (gap[2] - gap[1]))
        yield Sample(
            name=row["case"].removeprefix("sample:sample_models/"),
            nodes=between + 1,
            busy_us=busy,
            rest_us=graph["mid"] - busy - between * gap[1],
            before_us=graph["mid"],
            graph_us=truth["graph_us"],
        )


def _show(samples: Sequence[Sample]) -> None:
    print(f"{'sample':28} {'nodes':>5} {'busy us':>8} {'measured':>8} {'gap us':>7}"
          f" {'before':>7} {'in sample':>9} {'left out':>8}")  # fmt: skip
    chosen = median(sample.gap_us for sample in samples)
    errors: dict[str, list[float]] = {"before": [], "in sample": [], "left out": []}
    for sample in samples:
        others = median(other.gap_us for other in samples if other is not sample)
        found = (
            sample.error(sample.before_us),
            sample.error(sample.predicted_us(chosen)),
            sample.error(sample.predicted_us(others)),
        )
        for values, error in zip(errors.values(), found, strict=True):
            values.append(abs(error))
        print(f"{sample.name:28} {sample.nodes:5} {sample.busy_us:8.1f} {sample.graph_us:8.1f}"
              f" {sample.gap_us:7.2f} {found[0]:+7.0%} {found[1]:+9.0%} {found[2]:+8.0%}")  # fmt: skip
    gaps_us = sorted(sample.gap_us for sample in samples)
    print(f"gaps: median {chosen:.2f} us, from {gaps_us[0]:.2f} to {gaps_us[-1]:.2f} us")
    for name, values in errors.items():
        print(
            f"error of the graph's time, {name}: median {median(values):.1%}, largest {max(values):.1%}"
        )


def _show_trace(path: Path) -> None:
    trace = read_trace(path)
    calls = launch_of(trace)
    is_graph = trace.named(trace.calls, is_graph_launch)
    nodes = int(is_graph[calls[calls >= 0]].sum())
    found = np.concatenate(
        [
            one.device_gap_ns[one.in_graph]
            for one in (gaps(trace, d) for d in range(len(trace.devices)))
        ]
    )
    launches = int(is_graph.sum())
    print(f"{path.name}: {launches} graph launches, {nodes} kernels in them", end="")
    if len(found):
        tenths = np.percentile(found / 1e3, [10, 50, 90])
        print(", gaps between them {:.2f}, {:.2f}, {:.2f} us (10 %, median, 90 %)".format(*tenths))
    else:
        print()


if __name__ == "__main__":
    main()
