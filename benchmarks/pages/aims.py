"""What the strategies were to reach -> how far they did, and a table of what missed its aim, with the reasons."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from comparison import Compared, Planned, us_text
from prediction import missed_aims
from tables import Cells, table

from graphdoctor.strategies.recommend import step_us
from graphdoctor.values.speed import StrategyOutcome

ROOT = Path(__file__).resolve().parents[2]
CALL = ROOT / "benchmarks/data/captured_call_h200_torch2.11.json"
CAPTURE = ROOT / "benchmarks/data/capture_time_h200_torch2.11.json"
SWEEP_PAGE = ROOT / "docs/sweep.md"
SLOWEST = "max-autotune"
_MOST_OVER_BUSY = 1.10
_WHOLE_GRAPHS = ("whole", "compiled-whole")
_CALL_US, _CAPTURES = 5.0, 2.0
_HOST_US = 20.0  # what copies of a few inputs and the launch of a graph keep the host for
_NOT_RUN = "no run has come to it"
_WAIT_US = 100.0  # until a first graph runs on an idle device, and until the host has seen its end

# Looked at by hand if the rows show no reason: the kernels of replays in a row, on an idle H200.
_LOOKED_AT = {
    "learning.py:graph": "looked at alone on 2026-11-23 (torch 2.11), three such calls in a row took 226 µs each, 1.08"
    " times, with 0.3 µs between kernels; the row was timed in turns with eager, while other processes held memory of"
    " the GPU, and what it waited for is not known",
}


def reached(found: Sequence[Compared]) -> Iterator[str]:
    judged = [one for one in found if one.measured]
    late = list(filter(None, map(_not_fastest, judged)))
    graphs = _whole_graphs(found)
    idle = [one for one, row in graphs if _is_idle(row)]
    gains = [speedup for one in judged if (speedup := _gain(one)) is not None]
    yield (
        f"The recommended strategy is {median(gains):.1f} times as fast as eager in the median of the"
        f" {len(gains)} workloads where one is recommended, and up to {max(gains):.0f} times; on"
        f" {len(judged) - len(late)} of the {len(judged)} that have a verified time it is the fastest of all, ties"
        f" within the interval counted. Where the whole step is one graph it takes at most {_MOST_OVER_BUSY:.2f} times"
        f" the device's busy time on {len(graphs) - len(idle)} of {len(graphs)}."
        " [What missed its aim](#what-missed-its-aim) has the rest.\n"
    )


def missed(found: Sequence[Compared], planned: Planned) -> Iterator[str]:
    rows = [*_late(found), *_busy(found), *_unmeasured(found, planned), *_elsewhere()]
    yield from table(("aim", "found", "why"), rows)


def _gain(one: Compared) -> float | None:
    advice = one.recommendation
    row = one.outcomes.get(advice.strategy) if advice is not None else None
    return one.speedup(row).mid if row is not None and row.measurement is not None else None


def _late(found: Sequence[Compared]) -> Iterator[Cells]:
    for one in found:
        if one.measured and (text := _not_fastest(one)):
            yield (
                "the recommended strategy is the fastest",
                text,
                "what is not ours is recommended only where it is faster by more than its interval",
            )


def _not_fastest(one: Compared) -> str:
    advice, fastest = one.recommendation, one.measured[0]
    chosen = next((row for row in one.measured if advice and row.strategy == advice.strategy), None)
    assert fastest.measurement is not None
    if chosen is not None and chosen.measurement is not None:
        if step_us(chosen.measurement).low <= step_us(fastest.measurement).high:
            return ""
        return f"`{one.name}`: `{fastest.strategy}` is faster than `{chosen.strategy}`"
    is_gain = fastest.measurement.word == "faster"
    return f"`{one.name}`: `{fastest.strategy}` is faster than eager" if is_gain else ""


def _whole_graphs(found: Sequence[Compared]) -> list[tuple[Compared, StrategyOutcome]]:
    """The fastest graph of each workload's whole step."""
    rows = (
        (one, next((row for row in one.measured if row.strategy in _WHOLE_GRAPHS), None))
        for one in found
    )
    return [(one, row) for one, row in rows if row is not None and row.busy_share]


def _is_idle(row: StrategyOutcome) -> bool:
    return bool(row.busy_share and row.busy_share < 1 / _MOST_OVER_BUSY)


def _busy(found: Sequence[Compared]) -> Iterator[Cells]:
    for one, row in _whole_graphs(found):
        if _is_idle(row):
            assert row.busy_share is not None
            yield (
                f"a whole step takes at most {_MOST_OVER_BUSY:.2f} times the device's busy time",
                f"`{one.name}`, `{row.strategy}`: {1 / row.busy_share:.2f} times",
                _why_idle(row, _LOOKED_AT.get(one.name, "where the rest goes is not known")),
            )


def _why_idle(row: StrategyOutcome, otherwise: str) -> str:
    timed = row.measurement
    assert timed is not None and row.busy_share is not None
    busy_us, calls = row.busy_share * timed.graph_us, timed.calls_per_block
    idle_us = timed.graph_us - busy_us
    times = f"{us_text(timed.graph_us)} a call, in which the device works for {us_text(busy_us)}"
    if timed.graph_us <= _HOST_US:
        return (
            f"{times}: copying the inputs in and launching a graph keep the host for longer than these"
            " kernels take, so no graph can reach the device's time"
        )
    if idle_us * calls <= _WAIT_US:
        return (
            f"{times}: the step may be called {calls} times in a row, and then is waited for. That the first graph"
            f" starts on an idle device, and that the end is seen, took {us_text(idle_us * calls)}, which {calls}"
            " calls share"
        )
    return f"{times}; {otherwise}"


def _unmeasured(found: Sequence[Compared], planned: Planned) -> Iterator[Cells]:
    by_case = {one.case: one for one in found}
    cells = [(case, name) for case, names in planned.items() for name in names]
    left = [
        (case, name)
        for case, name in cells
        if case not in by_case or name not in by_case[case].outcomes
    ]
    if not left:
        return
    counts = Counter(name for _, name in left)
    said = ", ".join(f"{count} of `{name}`" for name, count in counts.most_common())
    reasons = Counter(
        by_case[case].errors.get(name, _NOT_RUN) if case in by_case else _NOT_RUN
        for case, name in left
    )
    yield (
        "every planned cell is measured",
        f"{len(cells) - len(left)} of {len(cells)}; without a result: {said}",
        f"{', '.join(f'{reason} ({count})' for reason, count in reasons.most_common())}; `{SLOWEST}` times kernels on"
        " the GPU for minutes before it is ready",
    )


def _elsewhere() -> Iterator[Cells]:
    """Of what other pages show."""
    small = _models(CALL)["small, 3 inputs"]
    if small["added_us"] > _CALL_US:
        yield (
            f"a captured call of a small model adds at most {_CALL_US:g} µs to the same copies and replay by hand",
            f"{small['added_us']:.1f} µs on an H200",
            f"{small['after_us']:.1f} of it are the look at the model after the launch, {small['modes_us']:.1f}"
            f" torch's switches, {small['form_us']:.1f} the form of the arguments:"
            " [capture.md](capture.md#what-the-guards-cost)",
        )
    times = sorted(one["times_ten_steps"] for one in _models(CAPTURE).values())
    if times[-1] > _CAPTURES:
        yield (
            f"a capture of training takes at most {_CAPTURES:g} times ten eager steps",
            f"{times[0]:.0f} to {times[-1]:.0f} times on an H200",
            "what is promised of the captured model is tried on it: recorded, watched and compared runs of the step,"
            " which [capture.md](capture.md#what-the-guards-cost) counts",
        )
    yield from _padding()
    for aim, text in missed_aims():
        yield aim, text, "[prediction.md](prediction.md#what-missed-its-aim)"


def _models(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))["models"])


def _padding() -> Iterator[Cells]:
    """The rows of docs/sweep.md in which the list of another waits no more than the chosen sizes."""
    lines = SWEEP_PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| Azure")]
    ties = [row for row in rows if _percent(row[6]) >= _percent(row[5])]
    for name, _, _, sizes, graphs, usual, chosen, _ in ties:
        yield (
            "with as many graphs, less padding than the defaults of others",
            f"{name}: {chosen}, as much as with {sizes} ({graphs} graphs, {usual})",
            "the sizes are chosen for the first half of the log's calls, and judged on the other:"
            " [sweep.md](sweep.md#how-much-padding-is-saved)",
        )


def _percent(text: str) -> float:
    return float(text.partition("%")[0])
