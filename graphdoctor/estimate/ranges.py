"""Ranges in, ranges out: low with low and high with high, because terms rise and fall together."""

from __future__ import annotations

from collections.abc import Iterable

from graphdoctor.model import Range

ZERO = Range(0.0, 0.0, 0.0)


def add(first: Range, second: Range) -> Range:
    return Range(first.low + second.low, first.mid + second.mid, first.high + second.high)


def scale(value: Range, factor: float) -> Range:
    """`factor` times the range; the factor must not be negative."""
    return Range(value.low * factor, value.mid * factor, value.high * factor)


def product(first: Range, second: Range) -> Range:
    return Range(first.low * second.low, first.mid * second.mid, first.high * second.high)


def divide(amount: float, rate: Range) -> Range:
    """The time that an amount takes: the highest rate gives the lowest time."""
    return Range(amount / rate.high, amount / rate.mid, amount / rate.low)


def around(mid: float, others: Iterable[float]) -> Range:
    """The range that the cases span, with the middle case in the middle."""
    values = (mid, *others)
    return Range(min(values), mid, max(values))
