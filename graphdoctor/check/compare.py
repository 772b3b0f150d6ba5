"""Compare the reports of targets before and after a change."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from graphdoctor.check.baseline import Key, keys_of
from graphdoctor.check.relative_paths import RelativePaths
from graphdoctor.check.step_figures import figures_of
from graphdoctor.values.captures import Region
from graphdoctor.values.check import Changes, FigureChange, Moved, RegionChange, TargetChange
from graphdoctor.values.figures import Range, count_text, joined, ratio_range, time_range
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location
from graphdoctor.values.report import Report
from graphdoctor.values.speed import Estimate, Measurement

Reports = Mapping[str, Report]


def compare(before: Reports, after: Reports, *, names: tuple[str, str]) -> Changes:
    """Every target of either side. Two lone reports are compared whatever they are called."""
    pairs: dict[str, tuple[Report | None, Report | None]] = {
        name: (before.get(name), after.get(name)) for name in sorted({*before, *after})
    }
    if len(before) == len(after) == 1:
        pairs = {next(iter(after)): (next(iter(before.values())), next(iter(after.values())))}
    targets = tuple(_target(name, *pair) for name, pair in pairs.items())
    # What else differs between the sides, so that the change is not blamed for it.
    notes = [*_differ("target", before, after)] if len(pairs) == 1 else []
    for name, attribute in (("torch", "torch"), ("device", "device_name")):
        old, new = (
            {getattr(r.machine, attribute) for r in side.values()} for side in (before, after)
        )
        notes += _differ(name, old, new)
    return Changes(*names, targets, tuple(notes))


def _target(name: str, before: Report | None, after: Report | None) -> TargetChange:
    if before is None or after is None:
        only = before or after
        assert only is not None
        found = only.findings
        return TargetChange(
            name,
            before=before.verdict if before else None,
            after=after.verdict if after else None,
            new=found if after else (),
            gone=found if before else (),
        )
    before, after = _at_home(before), _at_home(after)
    old, new = _by_key(before), _by_key(after)
    return TargetChange(
        name,
        before=before.verdict,
        after=after.verdict,
        new=tuple(new[key] for key in new if key not in old),
        gone=tuple(old[key] for key in old if key not in new),
        moved=tuple(_moved(old, new)),
        regions=tuple(_regions_of(before, after)),
        figures=tuple(_figures(before, after)),
    )


def _at_home(report: Report) -> Report:
    """Paths without the folder of the checkout, which is another one for each side."""
    named = report.target.file.replace(os.sep, "/")
    if os.path.isabs(named):
        folder = os.path.dirname(named)
    else:
        places = (place.file.replace(os.sep, "/") for place in _places(report))
        folder = next(
            (file[: -len(named)] for file in places if named and file.endswith(named)), ""
        )
    return RelativePaths(Path(folder)).report(report) if os.path.isabs(folder) else report


def _places(report: Report) -> Iterator[Location]:
    for finding in report.findings:
        yield from (place for place in (finding.location, *finding.stack) if place is not None)
    for region in report.regions:
        yield from (place for place in (region.first, region.last) if place is not None)


def _by_key(report: Report) -> dict[Key, Finding]:
    keys = keys_of(report.findings, root=Path(), otherwise=report.target.file)
    return dict(zip(keys, report.findings, strict=True))


def _moved(old: Mapping[Key, Finding], new: Mapping[Key, Finding]) -> Iterator[Moved]:
    for key, finding in new.items():
        was = old[key].location if key in old else None
        if was is not None and finding.location is not None and was.line != finding.location.line:
            yield Moved(finding, was)


def _regions_of(before: Report, after: Report) -> Iterator[RegionChange]:
    """A step that is captured as a whole now has lost none of the regions that it was cut into."""
    is_whole = len(after.regions) == 1 and figures_of(after).coverage == 1.0
    if not is_whole or len(before.regions) < 2:
        yield from _regions(before.regions, after.regions)
        return
    parts = joined([*map(_described, before.regions)])
    yield RegionChange("merged", f"{parts} became {_described(after.regions[0])}, the whole step")


def _regions(before: tuple[Region, ...], after: tuple[Region, ...]) -> Iterator[RegionChange]:
    """Names are given in order and lines move, so regions are known again by what they run.

    Several may run in one function: those that are still there have not become each other.
    """
    before, after = _without(before, after), _without(after, before)
    successors = {old.name: [new for new in after if _overlap(old, new)] for old in before}
    for old in before:
        found = successors[old.name]
        if not found:
            yield RegionChange("lost", f"{_described(old)} is lost")
        elif len(found) > 1:
            parts = " and ".join(_described(new) for new in found)
            yield RegionChange("split", f"{_described(old)} is split into {parts}")
    for new in after:
        found = [old for old in before if new in successors[old.name]]
        if not found:
            yield RegionChange("new", f"{_described(new)} is new")
        elif len(found) > 1:
            parts = " and ".join(_described(old) for old in found)
            yield RegionChange("merged", f"{parts} became {_described(new)}")
        elif len(successors[found[0].name]) == 1 and found[0].operators != new.operators:
            kind = "grown" if new.operators > found[0].operators else "shrunk"
            word = "grew" if kind == "grown" else "shrank"
            yield RegionChange(kind, f"{_described(found[0])} {word} to {_described(new)}")  # type: ignore[arg-type]


def _without(regions: tuple[Region, ...], others: tuple[Region, ...]) -> tuple[Region, ...]:
    """Those that the other side has not got just so, each of which stands for one."""
    there = Counter(map(_what_it_runs, others))
    left = []
    for region in regions:
        there[_what_it_runs(region)] -= 1
        if there[_what_it_runs(region)] < 0:
            left.append(region)
    return tuple(left)


def _what_it_runs(region: Region) -> tuple[object, ...]:
    starts = region.first and (region.first.file, region.first.function)
    return region.operators, region.launches, region.phases, region.modules, starts


def _overlap(old: Region, new: Region) -> bool:
    """They share a phase and a module; without modules, the function that they start in."""
    if not set(old.phases) & set(new.phases):
        return False
    if old.modules and new.modules:
        return bool(set(old.modules) & set(new.modules))
    if old.first is None or new.first is None:
        return old.first is new.first
    return (old.first.file, old.first.function) == (new.first.file, new.first.function)


def _described(region: Region) -> str:
    holds = f"{count_text(region.operators, 'operator')}, {count_text(region.launches, 'launch')}"
    return f"region {region.name} ({holds})"


def _figures(before: Report, after: Report) -> Iterator[FigureChange]:
    old, new = figures_of(before), figures_of(after)
    for name, more_is_better in (("syncs", False), ("launches", False), ("graphs", None)):
        was, now = getattr(old, name), getattr(new, name)
        if was != now:
            better = None if more_is_better is None else (now > was) == more_is_better
            yield FigureChange(name, f"{was:,}", f"{now:,}", better)
    if old.coverage != new.coverage:
        shares = (f"{old.coverage:.1%}", f"{new.coverage:.1%}")
        yield FigureChange("coverage", *shares, new.coverage > old.coverage)
    yield from _prediction(before.estimate, after.estimate)
    yield from _measurement(before.measurement, after.measurement)


def _prediction(old: Estimate | None, new: Estimate | None) -> Iterator[FigureChange]:
    """Eager time and speed-up with their bounds."""
    if old == new:
        return
    basis = new.basis if new is not None else "predicted"
    for name, attribute, in_words in (
        ("eager time", "eager_us", time_range),
        ("graph time", "graph_us", time_range),
        ("speedup", "speedup", ratio_range),
    ):
        was, now = (getattr(side, attribute, None) for side in (old, new))
        before, after = (in_words(one) if one else "none" for one in (was, now))
        if before != after:
            is_more = _is_more(was, now) if was is not None and now is not None else None
            is_better = is_more if in_words is ratio_range or is_more is None else not is_more
            yield FigureChange(f"{basis} {name}", before, after, is_better)


def _measurement(old: Measurement | None, new: Measurement | None) -> Iterator[FigureChange]:
    texts = [
        f"{side.speedup:.2f}x ({side.speedup_low:.2f} to {side.speedup_high:.2f}) on {side.gpu}"
        if side is not None
        else "not measured"
        for side in (old, new)
    ]
    if texts[0] == texts[1]:
        return
    is_better = None
    if old is not None and new is not None and old.gpu == new.gpu:
        was, now = (Range(side.speedup_low, side.speedup, side.speedup_high) for side in (old, new))
        is_better = _is_more(was, now)
    yield FigureChange("measured speedup", texts[0], texts[1], is_better)


def _is_more(was: Range, now: Range) -> bool | None:
    """None where the bounds overlap."""
    if now.low > was.high:
        return True
    return False if now.high < was.low else None


def _differ(name: str, before: Collection[str], after: Collection[str]) -> Iterator[str]:
    if {*before} != {*after}:
        old, new = (", ".join(sorted(side)) for side in (before, after))
        yield f"the two sides differ in {name}: {old} and {new}"
