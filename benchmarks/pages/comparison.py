"""The rows of benchmarks/gpu/strategies.py, of several runs -> one table of all strategies, and what missed its aim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec
from tables import Cells, Row, table

from graphdoctor.strategies import STRATEGIES
from graphdoctor.strategies.recommend import fair_speedup, recommend, step_us
from graphdoctor.values.figures import Range
from graphdoctor.values.speed import Recommendation, StrategyOutcome

NAMES = tuple(strategy.name for strategy in STRATEGIES)
_MOST_OVER_BUSY = 1.10
_NOISY = 1.25  # eager's time beside a row over the least beside any: the host did other work, too
_BUSY = 0.9  # of a step in which the device is busy for so long, a slower host does not tell
_WHOLE_GRAPHS = ("whole", "compiled-whole")
_SLOWEST = "max-autotune"


@dataclass(slots=True)
class Compared:
    """One workload: its outcome in each strategy, the last run's, and why others have none."""

    case: str
    outcomes: dict[str, StrategyOutcome] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    dates: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[StrategyOutcome]:
        """In the order of what they ask for."""
        return [self.outcomes[name] for name in NAMES if name in self.outcomes]

    @property
    def measured(self) -> list[StrategyOutcome]:
        """Verified, and timed on a quiet host; the fastest first."""
        found = [row for row in self.rows if row.status == "verified" and self.is_quiet(row)]
        return sorted(found, key=fast_us)

    @property
    def eager_us(self) -> float | None:
        times = [row.measurement.eager_us for row in self.rows if row.measurement is not None]
        return median(time for time in times if time <= _NOISY * min(times)) if times else None

    @property
    def recommendation(self) -> Recommendation | None:
        return recommend([row for row in self.rows if self.is_quiet(row)], ())

    def is_quiet(self, row: StrategyOutcome) -> bool:
        """Whether it was timed, and either the device decided its time, or the host was as fast as beside others."""
        times = [one.measurement.eager_us for one in self.rows if one.measurement is not None]
        if row.measurement is None:
            return False
        is_busy = (row.busy_share or 0.0) >= _BUSY
        return is_busy or row.measurement.eager_us <= _NOISY * min(times)

    def speedup(self, row: StrategyOutcome) -> Range:
        """Over the workload's own `eager_us`: each process met a host of another speed."""
        assert row.measurement is not None and self.eager_us is not None
        return fair_speedup(row.measurement, self.eager_us)


def fast_us(row: StrategyOutcome) -> float:
    assert row.measurement is not None
    return row.measurement.graph_us


def compared(rows: Sequence[Row]) -> list[Compared]:
    """By workload, in the order in which they were first measured; of a cell the last run counts."""
    found: dict[str, Compared] = {}
    date = ""
    for row in rows:
        if "about" in row:
            date = row["about"]["date"]
        if "strategy" not in row:
            continue
        one = found.setdefault(row["case"], Compared(row["case"]))
        name = row["strategy"]
        if "row" in row:
            one.outcomes[name] = msgspec.convert(row["row"], StrategyOutcome)
            one.dates[name] = date
            one.errors.pop(name, None)
        elif name not in one.outcomes:
            one.errors[name] = _reason(row)
    return list(found.values())


def _reason(row: Row) -> str:
    beside = "" if row.get("alone") else ", beside others"
    if row.get("exit", 0) < 0:
        return f"ended by signal {-row['exit']}{beside}"
    return str(row["error"].strip().splitlines()[-1])


def comparison(rows: Sequence[Row], planned: Sequence[str]) -> Iterator[str]:
    """The lines of the section; nothing where no run was made. `planned` are all workloads."""
    found = compared(rows)
    if not found:
        return
    columns = [name for name in NAMES if any(name in one.outcomes for one in found)]
    yield from _prepared(rows)
    yield (
        "Time of one step and speed-up over eager; in bold what is recommended. Each was timed interleaved with"
        " eager in a process of its own, and eager's time is the median of those processes where it was at most"
        f" {_NOISY:.2f} times the least: it is the host's, which differed between runs and cores. Of what is not"
        f" verified no time counts. A time with † is of a step that leaves the device idle for over {1 - _BUSY:.0%}"
        " of it, and was taken where eager was slower than that: it is neither recommended nor drawn.\n"
    )
    yield from table(("workload", "eager", *columns), (_cells(one, columns) for one in found))
    yield "![Speed-up over eager with its 95 % interval, for each strategy of each workload](results.svg)\n"
    yield from _aims(found)
    yield from _why_not_tried(found)
    left = [name for name in planned if name not in {one.case for one in found}]
    if left:
        yield (
            f"No run has reached {len(left)} of the {len(planned)} workloads yet:"
            f" {', '.join(f'`{name}`' for name in left)}.\n"
        )


def _prepared(rows: Sequence[Row]) -> Iterator[str]:
    said = [
        f"{row['prepared']} processes in {row['seconds']:.0f} s"
        for row in rows
        if "prepared" in row
    ]
    yield (
        "Each strategy of each workload was a process of its own. They built, compiled, captured and verified side"
        f" by side, with the compilers' caches shared ({'; '.join(said)}), and then timed one after the other, alone.\n"
    )


def _cells(one: Compared, columns: Sequence[str]) -> Cells:
    advice = one.recommendation
    best = advice.strategy if advice is not None else ""
    yield f"`{one.case.removeprefix('benchmarks/gpu/workloads/')}`"
    yield us_text(one.eager_us) if one.eager_us is not None else "-"
    for name in columns:
        text = _cell(one, name)
        yield f"**{text}**" if name == best else text


def _cell(one: Compared, name: str) -> str:
    row = one.outcomes.get(name)
    if row is None:
        return one.errors.get(name, "-")
    if row.status != "verified":
        return row.status.replace("-", " ")
    timed = row.measurement
    if timed is None:
        return "not timed"
    if not one.is_quiet(row):
        return f"{us_text(timed.graph_us)} †"
    return f"{us_text(timed.graph_us)}, {one.speedup(row).mid:.2f}x"


def us_text(value: float) -> str:
    return f"{value:,.0f} µs" if value < 100_000 else f"{value / 1000:,.0f} ms"


def _aims(found: Sequence[Compared]) -> Iterator[str]:
    judged = [one for one in found if one.measured]
    late = [text for one in judged if (text := _not_fastest(one))]
    graphs = [graph for one in judged if (graph := _whole_graph(one)) is not None]
    idle = [text for one in graphs if (text := _over_busy(*one))]
    yield (
        f"The recommended strategy is the fastest, ties within the interval counted, on {len(judged) - len(late)} of"
        f" {len(judged)} workloads that have a verified time{_but(late)}."
    )
    yield (
        f"Where the whole step is one graph it takes at most {_MOST_OVER_BUSY:.2f} times the device's busy time on"
        f" {len(graphs) - len(idle)} of {len(graphs)}{_but(idle)}.\n"
    )
    yield "What was not verified, or not measured, and why:\n"
    for one in found:
        for reason, names in _reasons(one).items():
            yield f"- `{one.case}`, {', '.join(f'`{name}`' for name in names)}: {reason}"
    yield ""


def _reasons(one: Compared) -> dict[str, list[str]]:
    """The strategies that have no verified time, by the reason."""
    found: dict[str, list[str]] = {}
    for row in one.rows:
        if row.status != "verified":
            reason = f"{row.status.replace('-', ' ')}: {row.reason}"
            found.setdefault(reason, []).append(row.strategy)
    for name, reason in one.errors.items():
        found.setdefault(reason, []).append(name)
    return found


def _why_not_tried(found: Sequence[Compared]) -> Iterator[str]:
    without = [one for one in found if _SLOWEST not in one.outcomes and _SLOWEST not in one.errors]
    if without:
        yield (
            f"`{_SLOWEST}` was not tried on {len(without)} of the {len(found)} workloads: it times kernels on the GPU"
            " for minutes before it is ready.\n"
        )


def _but(texts: Sequence[str]) -> str:
    return f"; not on {', '.join(texts)}" if texts else ""


def _not_fastest(one: Compared) -> str:
    advice, fastest = one.recommendation, one.measured[0]
    chosen = next((row for row in one.measured if advice and row.strategy == advice.strategy), None)
    assert fastest.measurement is not None
    if chosen is not None and chosen.measurement is not None:
        if step_us(chosen.measurement).low <= step_us(fastest.measurement).high:
            return ""
        return f"`{one.case}` (`{fastest.strategy}` is faster than `{chosen.strategy}`)"
    is_gain = fastest.measurement.word == "faster"
    return f"`{one.case}` (`{fastest.strategy}` is faster than eager)" if is_gain else ""


def _whole_graph(one: Compared) -> tuple[str, float] | None:
    """The workload, and the share of the fastest graph of its whole step in which the device is busy."""
    rows = (row for row in one.measured if row.strategy in _WHOLE_GRAPHS)
    busy = next((row.busy_share for row in rows), None)
    return (one.case, busy) if busy else None


def _over_busy(case: str, busy_share: float) -> str:
    if busy_share >= 1 / _MOST_OVER_BUSY:
        return ""
    return f"`{case}` ({1 / busy_share:.2f})"
