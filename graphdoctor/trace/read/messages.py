"""The arguments of a collective, as torch writes them -> a Message."""

from __future__ import annotations

import re
from typing import Any

from graphdoctor.trace.arrays import Message

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
