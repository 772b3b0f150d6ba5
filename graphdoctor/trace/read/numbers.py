"""What writers put where numbers belong -> whole numbers, times in ns, the message of a collective."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from graphdoctor.trace.arrays import NO_CORRELATION, Ints, Message

# 285 years in us: what is beyond does not fit 64 bits of ns.
_LARGEST_US = 9.0e15
_LARGEST = 2**62  # no counter reaches it


def correlations(args: Sequence[Any]) -> Ints:
    """The ids that join calls and kernels; -1 where there is none."""
    values = [NO_CORRELATION if arg is None else arg.correlation for arg in args]
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, OverflowError):
        pass
    is_known = [isinstance(value, int) and abs(value) < _LARGEST for value in values]
    return np.where(is_known, np.where(is_known, values, 0), NO_CORRELATION).astype(np.int64)


def whole(value: Any) -> int:
    """A whole number; 0 for anything else, and for what no counter reaches."""
    return value if isinstance(value, int) and abs(value) < _LARGEST else 0


def integers(values: list[Any]) -> Ints:
    """Whole numbers; one by one only where a writer wrote something else."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value) for value in values], np.int64)


def _integer(value: float | str | None) -> int:
    """0 for what is no number, and for what no counter reaches."""
    if value is None:
        return 0
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return 0
    return number if abs(number) < _LARGEST else 0


def ns(values: Sequence[int | float | Decimal]) -> tuple[Ints, int]:
    """Microseconds as whole ns; what does not fit becomes 0, and is counted."""
    if isinstance(values[0], Decimal) or isinstance(values[-1], Decimal):
        exact = [0 if abs(float(value)) >= _LARGEST_US else round(value * 1000) for value in values]
        return np.array(exact, np.int64), sum(abs(float(value)) >= _LARGEST_US for value in values)
    try:
        numbers = np.array(values, np.float64)
    except OverflowError:
        numbers = np.array(
            [float(value) if -_LARGEST_US < value < _LARGEST_US else np.inf for value in values]
        )
    outside = ~(np.abs(numbers) < _LARGEST_US)
    count = int(np.count_nonzero(outside))
    if count:
        numbers = np.where(outside, 0, numbers)
    # Whole us are exact as floats; a thousand times as many ns are not.
    full = np.trunc(numbers)
    return full.astype(np.int64) * 1000 + np.rint((numbers - full) * 1000).astype(np.int64), count


# The operator around each collective, which has its arguments; kernels have them since torch 2.3.
RECORDED = "record_param_comms"
# As torch writes the types of a collective's elements.
_DTYPE_BYTES = {
    **{"Double": 8, "Long": 8, "ComplexFloat": 8, "ComplexDouble": 16},
    **{"Float": 4, "Int": 4, "UInt32": 4, "BFloat16": 2, "Half": 2, "Short": 2, "UInt16": 2},
}
_NUMBER = re.compile(r"\d+")
_MOST_RANKS = 1 << 16


def message_of(args: Any) -> Message | None:
    """None where these are no arguments of a collective."""
    if args.collective is None and not message_bytes(args):
        return None
    return Message(
        collective=args.collective if isinstance(args.collective, str) else "",
        nbytes=message_bytes(args),
        dtype=args.dtype if isinstance(args.dtype, str) else "",
        group=str(args.group) if isinstance(args.group, str | int) else "",
        ranks=_ranks(args.group_ranks),
    )


def message_bytes(args: Any) -> int:
    """The larger of what goes in and what comes out; 0 where the trace does not say."""
    if not isinstance(args.dtype, str):
        return 0
    sizes = (args.elements, args.elements_out)
    elements = max((size for size in sizes if isinstance(size, int)), default=0)
    total = elements * _DTYPE_BYTES.get(args.dtype, 1)
    return total if 0 <= total < 2**62 else 0


def _ranks(text: Any) -> tuple[int, ...]:
    """ "[0, 1, 2]" as numbers; () for what profilers cut short with "..."."""
    if not isinstance(text, str) or "..." in text:
        return ()
    return tuple(int(number) for number in _NUMBER.findall(text)[:_MOST_RANKS])
