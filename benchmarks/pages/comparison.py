"""The rows of benchmarks/gpu/strategies.py -> one table of all strategies, and why some have no time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec
from tables import Cells, Row, table

from graphdoctor.strategies import STRATEGIES
from graphdoctor.strategies.recommend import fair_speedup, recommend
from graphdoctor.values.figures import Range
from graphdoctor.values.speed import Recommendation, StrategyOutcome

NAMES = tuple(strategy.name for strategy in STRATEGIES)
_NOISY = 1.25  # eager's time next to a row over the least of all rows: the host did other work, too
_BUSY = 0.9  # if the device is busy for this share of a step, a slower host changes nothing

Planned = Mapping[str, Sequence[str]]  # the strategies to measure, by workload


@dataclass(slots=True)
class Compared:
    """One workload: its outcome in each strategy, the last run's, and why others have none."""

    case: str
    outcomes: dict[str, StrategyOutcome] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    dates: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The short one."""
        return case_name(self.case)

    @property
    def rows(self) -> list[StrategyOutcome]:
        """In the order of what they require."""
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
        """Whether it was timed, and the device decided its time, or the host was as fast as next to other rows."""
        times = [one.measurement.eager_us for one in self.rows if one.measurement is not None]
        if row.measurement is None:
            return False
        is_busy = (row.busy_share or 0.0) >= _BUSY
        return is_busy or row.measurement.eager_us <= _NOISY * min(times)

    def speedup(self, row: StrategyOutcome) -> Range:
        """Over the workload's own `eager_us`: each process met a host of another speed."""
        assert row.measurement is not None and self.eager_us is not None
        return fair_speedup(row.measurement, self.eager_us)


def case_name(case: str) -> str:
    return case.removeprefix("benchmarks/gpu/workloads/")


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
    others = "" if row.get("alone") else ", while others ran"
    if row.get("exit", 0) < 0:
        return f"ended by signal {-row['exit']}{others}"
    return str(row["error"].strip().splitlines()[-1])


LEGEND = """Time of one step and speedup over eager; the recommended strategy is in bold. Each strategy was timed
interleaved with eager in a separate process. Eager's time depends on the host, which differed between runs and cores:
the column has the median of the processes in which it was at most {noisy:.2f} times the least. Only verified strategies
have a time.

- `-`: not planned. {not_asked}
- *not run*: planned, and no run has reached it.
- †: the step leaves the device idle for over {idle:.0%} of the time, and eager was slower next to this strategy than
  next to others, which shows that the host did other work. The strategy is neither recommended nor drawn.
- Any other word says why there is no time; [the reasons](#not-verified-or-not-measured) follow below.
"""
_NOT_ASKED = {
    ("split-step", "compiled-split"): "only a step that trains has a backward pass to split off",
    ("whole", "compiled-whole"): "the step has operators that no graph can contain",
    (
        "modules",
    ): "nothing is published for parts of these samples, which are measured as the published figures were",
    ("segments",): "they are for steps that cannot be one graph; measurements of earlier runs are"
    " [below](#every-workload-in-every-strategy)",
    ("script", "script-graph"): "TorchScript is measured only for published TorchScript figures",
}


def comparison(found: Sequence[Compared], planned: Planned) -> Iterator[str]:
    """The table of all strategies of all workloads, and its legend; nothing where no run was made."""
    if not found:
        return
    columns = [name for name in NAMES if any(name in one.outcomes for one in found)]
    head = ("workload", "eager", *columns)
    yield from table(head, (_cells(one, columns, planned.get(one.case, ())) for one in found))
    yield LEGEND.format(noisy=_NOISY, idle=1 - _BUSY, not_asked=_not_asked(planned))
    left = [f"`{name}`" for name in planned if name not in {one.case for one in found}]
    if left:
        yield f"No run has reached {len(left)} of the {len(planned)} workloads yet: {', '.join(left)}.\n"


def _not_asked(planned: Planned) -> str:
    said = []
    for names, why in _NOT_ASKED.items():
        count = sum(names[0] not in asked for asked in planned.values())
        if count:
            shown = " and ".join(f"`{name}`" for name in names)
            said.append(f"{shown} of {count} workloads: {why}")
    return f"{'; '.join(said)}."


def _cells(one: Compared, columns: Sequence[str], asked: Sequence[str]) -> Cells:
    advice = one.recommendation
    best = advice.strategy if advice is not None else ""
    yield f"`{one.name}`"
    yield us_text(one.eager_us) if one.eager_us is not None else "-"
    for name in columns:
        text = _cell(one, name, is_asked=name in asked)
        yield f"**{text}**" if name == best else text


def _cell(one: Compared, name: str, *, is_asked: bool) -> str:
    row = one.outcomes.get(name)
    if row is None:
        return one.errors.get(name, "not run" if is_asked else "-")
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


def reasons(found: Sequence[Compared]) -> Iterator[str]:
    """What was not verified, or not measured, and why: a list."""
    for one in found:
        for reason, names in _reasons(one).items():
            yield f"- `{one.name}`, {', '.join(f'`{name}`' for name in names)}: {reason}"
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
