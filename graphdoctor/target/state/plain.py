"""A value that leads to no other state -> what stands for it where two moments are compared."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import io
import sys
import zlib
from collections import deque
from typing import Any, TypeGuard

SCALARS = (bool, int, float, complex, str, bytes, type(None))
STREAMS = (io.BytesIO, io.StringIO)
# A list of more plain values than this is data rather than state: it is compared as a whole.
LONG = 256
# More bytes, or items, than this are a data set, which costs too much to look at after every step.
_DATA = 1 << 22
Value = str | int | float | complex | bytes | bool | None
_NUMBERS = (
    decimal.Decimal,
    fractions.Fraction,
    datetime.date,
    datetime.datetime,
    datetime.timedelta,
)


def stands_for(path: str, value: object) -> tuple[str, Value] | None:
    """A path and a value that differ where the state does; None for what only leads to other values.

    Containers have "len(path)"; long ones, and memory outside torch, "contents(path)".
    """
    if isinstance(value, SCALARS):
        return path, value
    if isinstance(value, enum.Enum):
        return path, str(value)
    if isinstance(value, _NUMBERS):
        return path, repr(value)
    if isinstance(value, (list, tuple, deque)) and is_data(value):
        return f"contents({path})", _of_items(value)
    if isinstance(value, (dict, list, set, deque, tuple, frozenset)):
        return f"len({path})", len(value)
    if isinstance(value, STREAMS):
        return None if value.closed else (f"position({path})", value.tell())
    return _of_numpy(path, value) or _of_memory(path, value)


def told_of(path: str) -> str:
    """The path of what such a path tells of: "seen" of "len(seen)"; of any other, itself."""
    return path.partition("(")[2].removesuffix(")") if path.endswith(")") else path


def is_data(items: list[object] | tuple[object, ...] | deque[object]) -> bool:
    """Whether it holds so many plain values, and nothing else, that each is not state by itself."""
    return len(items) > LONG and all(isinstance(item, SCALARS) for item in items)


def _of_items(items: list[object] | tuple[object, ...] | deque[object]) -> str:
    alike = f" of {hash(tuple(items)):x}" if len(items) <= _DATA else ""
    return f"{len(items)} values{alike}"


def is_array(value: object) -> TypeGuard[Any]:
    """Whether it is an array of NumPy's, which need not be there."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _of_numpy(path: str, value: object) -> tuple[str, Value] | None:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return path, repr(value)
    if is_array(value) and not value.dtype.hasobject:
        about = f"{value.dtype} of shape {value.shape}"
        has_digest = value.nbytes <= _DATA
        return f"contents({path})", f"{about}, {_digest(value.tobytes())}" if has_digest else about
    return None


def is_memory(value: object) -> bool:
    """Whether it is memory that is written to without another object: an array, a number of C, a map of a file."""
    try:
        with memoryview(value) as memory:  # type: ignore[arg-type]
            return not memory.readonly and memory.contiguous
    except (TypeError, ValueError, BufferError):
        return False


def _of_memory(path: str, value: object) -> tuple[str, Value] | None:
    if not is_memory(value):
        return None
    with memoryview(value) as memory:  # type: ignore[arg-type]
        if memory.nbytes > _DATA:
            return f"contents({path})", f"{memory.nbytes} bytes"
        return f"contents({path})", _digest(memory.tobytes())


def _digest(data: bytes | bytearray) -> str:
    return f"{len(data)} bytes of {zlib.crc32(data):x}"
