"""Measured speedups -> docs/results.svg: one line a workload, a dot a strategy, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log10

from comparison import Compared

from graphdoctor.values.figures import Range

_WIDTH, _LEFT, _RIGHT, _LINE, _TOP, _BOTTOM = 860, 250, 190, 17, 56, 30
_LOW, _TICKS = 0.5, (0.5, 1, 2, 5, 10, 20)
_GROUPS = {
    "compiled by Inductor, inside our graph": ("#c2410c", ("compiled-whole", "compiled-split")),
    "the whole step as one or two graphs": ("#1d4ed8", ("whole", "split-step")),
    "regions of the step as graphs": ("#0f766e", ("modules", "segments")),
    "torch.compile and TorchScript": ("#9ca3af", ()),
}
_OTHERS = "#9ca3af"
_COLORS = {name: color for color, names in _GROUPS.values() for name in names}


def chart(found: Sequence[Compared]) -> str:
    """The text of the picture. Dots are medians, bars their 95 % intervals; a ring is around what is recommended."""
    shown = [one for one in found if one.measured]
    height = _TOP + len(shown) * _LINE + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        '<text x="10" y="16" font-size="13">Speedup over eager, with 95 % intervals; a ring marks the recommended'
        " strategy</text>",
        *_legend(),
        *_axis(height),
    ]
    for place, one in enumerate(shown):
        parts.extend(_row(_TOP + (place + 1) * _LINE, one))
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> Iterator[str]:
    for place, (text, (color, _)) in enumerate(_GROUPS.items()):
        x = 14 + 210 * place
        yield f'<circle cx="{x}" cy="34" r="3.5" fill="{color}"/>'
        yield f'<text x="{x + 8}" y="38">{escape(text)}</text>'


def _x(speedup: float) -> float:
    span = log10(_TICKS[-1] / _LOW)
    share = log10(max(speedup, _LOW) / _LOW) / span
    return _LEFT + min(share, 1.0) * (_WIDTH - _LEFT - _RIGHT)


def _axis(height: int) -> Iterator[str]:
    for tick in _TICKS:
        x, color = _x(tick), "#9ca3af" if tick == 1 else "#e5e7eb"
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{height - 24}" stroke="{color}"/>'
        yield f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{tick:g}x</text>'


def _row(y: int, one: Compared) -> Iterator[str]:
    advice = one.recommendation
    chosen = advice.strategy if advice is not None else ""
    yield f'<text x="10" y="{y}">{escape(one.name)}</text>'
    # The recommended strategy last, on top of the others.
    for row in sorted(one.measured, key=lambda row: row.strategy == chosen):
        yield from _dot(y, row.strategy, one.speedup(row), is_chosen=row.strategy == chosen)


def _dot(y: int, name: str, speedup: Range, *, is_chosen: bool) -> Iterator[str]:
    color = _COLORS.get(name, _OTHERS)
    low, middle, high = map(_x, (speedup.low, speedup.mid, speedup.high))
    yield (
        f'<line x1="{low:.1f}" y1="{y - 4}" x2="{high:.1f}" y2="{y - 4}" stroke="{color}"'
        ' stroke-width="3" stroke-opacity="0.4"/>'
    )
    yield (
        f'<circle cx="{middle:.1f}" cy="{y - 4}" r="3.2" fill="{color}"><title>{escape(name)}'
        f" {speedup.mid:.2f}x</title></circle>"
    )
    if is_chosen:
        yield (
            f'<circle cx="{middle:.1f}" cy="{y - 4}" r="6" fill="none" stroke="{color}"'
            ' stroke-width="1.5"/>'
        )
        yield (
            f'<text x="{_WIDTH - _RIGHT + 14}" y="{y}" fill="{color}">{speedup.mid:.2f}x'
            f" {escape(name)}</text>"
        )
