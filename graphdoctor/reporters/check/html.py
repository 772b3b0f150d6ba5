"""Writes a check as one HTML file; of several checks of one repository the last, with their history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from graphdoctor.reporters.check import wording
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.web import document
from graphdoctor.reporters.web.code import Numbered, files_of, parts, prose
from graphdoctor.values.check import Check, Figures, occurrences
from graphdoctor.values.figures import share_text
from graphdoctor.values.finding import effect_text


def render(check: Check, look: Look) -> str:
    """The page of one check, which asks no network for anything and runs no script."""
    return render_history([Dated("", check)], look)


def render_history(checks: Sequence[Dated], look: Look) -> str:
    """The page of the last check, with curves over all of them, from the oldest on."""
    check = checks[-1].check
    numbers = count(1)
    causes = [
        [(Numbered(next(numbers), one.checked.finding), one) for one in cause]
        for cause in wording.causes(occurrences(check, is_new=True))
    ]
    numbered = [one for cause in causes for one, _ in cause]
    return document(
        "check.html",
        check=check,
        word="PASSED" if wording.passed(check) else "FAILED",
        headline=wording.headline(check),
        causes=causes,
        effect_text=effect_text,
        known=occurrences(check, is_new=False),
        files=files_of(numbered, look.base),
        checks=checks,
        history=curves_of(checks) if len(checks) > 1 else [],
        labels=LABELS,
        width=WIDTH,
        height=HEIGHT,
        parts=parts,
        prose=prose,
        wording=wording,
        share_text=share_text,
    )


WIDTH, HEIGHT = 150.0, 30.0  # units of the pictures' view boxes
_EDGE = 4.0


@dataclass(frozen=True, slots=True)
class Dated:
    """A check and what it is called, such as the name of its file."""

    name: str
    check: Check


@dataclass(frozen=True, slots=True)
class Curve:
    """One figure over the checks; `lines` are broken where a check has no such figure.

    `word` says what became of it from the first to the last.
    """

    label: str
    lines: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    first: str
    last: str
    word: str


@dataclass(frozen=True, slots=True)
class TargetCurves:
    target: str
    curves: tuple[Curve, ...]


_Get = Callable[[Figures], float]
_FIGURES: tuple[tuple[str, _Get, Callable[[float], str], bool], ...] = (
    ("Waits", lambda one: one.syncs, lambda value: f"{value:,.0f}", False),
    ("Launches", lambda one: one.launches, lambda value: f"{value:,.0f}", False),
    ("Graphs", lambda one: one.graphs, lambda value: f"{value:,.0f}", False),
    ("Captured", lambda one: one.coverage, share_text, True),
)
LABELS = tuple(label for label, *_ in _FIGURES)


def curves_of(checks: Sequence[Dated]) -> list[TargetCurves]:
    """Of every target that any check has figures of, by the order in which they come."""
    figures: dict[str, list[Figures | None]] = {}
    for number, dated in enumerate(checks):
        for target in dated.check.targets:
            known = figures.setdefault(target.name, [None] * len(checks))
            known[number] = target.figures
    return [
        TargetCurves(name, tuple(_curve(*figure, known) for figure in _FIGURES))
        for name, known in figures.items()
        if any(known)
    ]


def _curve(
    label: str,
    get: _Get,
    text: Callable[[float], str],
    is_more_better: bool,
    known: Sequence[Figures | None],
) -> Curve:
    values = [get(one) if one is not None else None for one in known]
    there = [value for value in values if value is not None]
    low, high = min(there), max(there)
    points: list[tuple[float, float] | None] = []
    for number, value in enumerate(values):
        at = _EDGE + (WIDTH - 2 * _EDGE) * number / max(1, len(values) - 1)
        share = 0.5 if value is None or high == low else (value - low) / (high - low)
        up = HEIGHT - _EDGE - (HEIGHT - 2 * _EDGE) * share
        points.append((round(at, 1), round(up, 1)) if value is not None else None)
    change = there[-1] - there[0]
    is_better = (change > 0) == is_more_better
    lines: list[list[str]] = [[]]
    for point in points:
        if point is None:
            lines.append([])
        else:
            lines[-1].append(f"{point[0]:g},{point[1]:g}")
    return Curve(
        label=label,
        lines=tuple(" ".join(line) for line in lines if len(line) > 1),
        points=tuple(point for point in points if point is not None),
        first=text(there[0]),
        last=text(there[-1]),
        word="same" if not change else "better" if is_better else "worse",
    )
