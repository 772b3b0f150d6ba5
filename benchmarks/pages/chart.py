"""Measured speed-ups -> docs/results.svg: one line a strategy, grouped by workload, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log10

from comparison import NAMES, Compared

from graphdoctor.values.figures import Range

_WIDTH, _LEFT, _RIGHT, _LINE, _GAP, _TOP = 860, 300, 70, 16, 12, 34
_LOW, _TICKS = 0.5, (0.5, 1, 2, 5, 10, 20)
_COLORS = {"compiled-whole": "#c2410c", "compiled-split": "#ea9a3e", "whole": "#1d4ed8"}
_OTHERS = "#6b7280"


def chart(found: Sequence[Compared]) -> str:
    """The text of the picture. Dots are medians, bars their 95 % intervals."""
    lines = list(_lines(found))
    height = _TOP + sum(_GAP if name is None else _LINE for name, _, _ in lines) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        '<text x="10" y="16" font-size="13">Speed-up over eager, 95 % intervals</text>',
        *_axis(height),
    ]
    y = _TOP
    for name, speedup, title in lines:
        if name is None or speedup is None:
            y += _GAP
            continue
        y += _LINE
        parts.extend(_row(y, name, speedup, title))
    return "\n".join([*parts, "</svg>", ""])


def _lines(found: Sequence[Compared]) -> Iterator[tuple[str | None, Range | None, str]]:
    """The workload's name stands beside its first strategy."""
    for one in found:
        rows = sorted(one.measured, key=lambda row: NAMES.index(row.strategy))
        title = one.case.removeprefix("benchmarks/gpu/workloads/")
        for row in rows:
            yield row.strategy, one.speedup(row), title
            title = ""
        if rows:
            yield None, None, ""


def _x(speedup: float) -> float:
    span = log10(_TICKS[-1] / _LOW)
    share = log10(max(speedup, _LOW) / _LOW) / span
    return _LEFT + min(share, 1.0) * (_WIDTH - _LEFT - _RIGHT)


def _axis(height: int) -> Iterator[str]:
    for tick in _TICKS:
        x, color = _x(tick), "#9ca3af" if tick == 1 else "#e5e7eb"
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{height - 24}" stroke="{color}"/>'
        yield f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{tick:g}x</text>'


def _row(y: int, name: str, speedup: Range, title: str) -> Iterator[str]:
    color = _COLORS.get(name, _OTHERS)
    low, middle, high = map(_x, (speedup.low, speedup.mid, speedup.high))
    if title:
        yield f'<text x="10" y="{y}" font-weight="bold">{escape(title)}</text>'
    yield f'<text x="{_LEFT - 10}" y="{y}" text-anchor="end" fill="{color}">{escape(name)}</text>'
    yield (
        f'<line x1="{low:.1f}" y1="{y - 4}" x2="{high:.1f}" y2="{y - 4}" stroke="{color}"'
        ' stroke-width="3" stroke-opacity="0.5"/>'
    )
    yield f'<circle cx="{middle:.1f}" cy="{y - 4}" r="3.5" fill="{color}"/>'
    yield f'<text x="{high + 8:.1f}" y="{y}">{speedup.mid:.2f}x</text>'
