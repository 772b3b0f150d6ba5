"""Formats times, shares, ratios and counts as short text with units; a range keeps its bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

UNKNOWN = "unknown"
MICROSECONDS = "\u00b5s"


class Range(Struct, frozen=True):
    """A figure that is known only within bounds."""

    low: float
    mid: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        """A figure that is known."""
        return cls(value, value, value)

    # Low with low and high with high, because terms rise and fall together. No factor may be negative.
    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.mid + other.mid, self.high + other.high)

    def __mul__(self, factor: Range | float) -> Range:
        if isinstance(factor, Range):
            return Range(self.low * factor.low, self.mid * factor.mid, self.high * factor.high)
        return Range(self.low * factor, self.mid * factor, self.high * factor)


def time_text(time_us: float) -> str:
    """12 \u00b5s, 1.23 ms, 4.5 s: three significant digits."""
    if not math.isfinite(time_us):
        return UNKNOWN
    scale, unit = _time_unit(time_us)
    return f"{_digits(time_us / scale)} {unit}"


def time_range(times_us: Range) -> str:
    """12 \u00b5s (10 to 15 \u00b5s): the bounds in the unit of the middle."""
    if not _is_finite(times_us):
        return UNKNOWN
    scale, unit = _time_unit(times_us.mid)
    low, mid, high = (
        _digits(value / scale) for value in (times_us.low, times_us.mid, times_us.high)
    )
    return f"{mid} {unit} ({low} to {high} {unit})" if low != high else f"{mid} {unit}"


def names_text(names: Sequence[str], *, most: int = 3) -> str:
    """`a`, `b` and 2 more: names in a sentence."""
    quoted = [f"`{name}`" for name in names]
    return first_of(quoted, most) if len(quoted) > most else joined(quoted)


def first_of(names: Sequence[str], most: int) -> str:
    """a, b and 2 more."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def joined(parts: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def cost_text(cost_us: Range, source: str) -> str:
    """about 300 \u00b5s (150 to 500 \u00b5s), predicted: the first word of where the figure comes from."""
    word = source.split(" ", 1)[0]
    return f"about {time_range(cost_us)}" + (f", {word}" if word else "")


def share_text(share: float) -> str:
    """62.5%, 100%: a share between 0 and 1."""
    return f"{share * 100:.1f}%".replace(".0%", "%")


def share_range(share: Range) -> str:
    """62% (50% to 70%) of a share between 0 and 1."""
    if not _is_finite(share):
        return UNKNOWN
    low, mid, high = (f"{value * 100:.0f}" for value in (share.low, share.mid, share.high))
    return f"{mid}% ({low}% to {high}%)" if low != high else f"{mid}%"


def ratio_range(ratio: Range) -> str:
    """2.4x (1.8x to 3.2x)."""
    if not _is_finite(ratio):
        return UNKNOWN
    low, mid, high = (_digits(value) for value in (ratio.low, ratio.mid, ratio.high))
    return f"{mid}x ({low}x to {high}x)" if low != high else f"{mid}x"


def ratio_text(ratio: float) -> str:
    """2.4x: three significant digits."""
    return f"{_digits(ratio)}x" if math.isfinite(ratio) else UNKNOWN


def more_bytes_text(count: int) -> str:
    """+34 MB, -1.2 GB, 0 B: more or less than before, in powers of 1000."""
    sign = "+" if count > 0 else "-" if count < 0 else ""
    return f"{sign}{bytes_text(abs(count))}"


def bytes_text(count: int) -> str:
    """34 MB, 1.2 GB, 0 B, in powers of 1000."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000.0, larger
    return f"{_short(size)} {unit}"


def many_text(count: int) -> str:
    """1,204, 12,345, 1.2 M: how often, in at most seven characters."""
    return f"{count:,}" if count < 100_000 else f"{_short(count / 1e6)} M"


def _short(value: float) -> str:
    """Two significant digits at least, one decimal at most."""
    return f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:,.0f}"


def count_text(count: int, noun: str) -> str:
    """1 operator, 12,000 operators, 2 launches, 3 entries."""
    return f"{count:,} {noun if count == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith(("ch", "sh", "s", "x")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def shortened(text: str, most: int = 60) -> str:
    """The text, or its beginning and "..." where it has more characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _time_unit(time_us: float) -> tuple[float, str]:
    if abs(time_us) < 1e3:
        return 1.0, MICROSECONDS
    return (1e3, "ms") if abs(time_us) < 1e6 else (1e6, "s")


def _digits(value: float) -> str:
    """Three significant digits, never in scientific notation."""
    magnitude = abs(value)
    decimals = 0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _is_finite(values: Range) -> bool:
    return all(math.isfinite(value) for value in (values.low, values.mid, values.high))
