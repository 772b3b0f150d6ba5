"""What plain data is: numbers and texts, and many of them in a list."""

from __future__ import annotations

import io
import sys
from collections import deque
from typing import Any, TypeGuard

SCALARS = (bool, int, float, complex, str, bytes, type(None))
STREAMS = (io.BytesIO, io.StringIO)
# A list of more plain values than this is data rather than state: it is compared as a whole.
LONG = 256


def is_data(items: list[object] | tuple[object, ...] | deque[object]) -> bool:
    """Whether it holds so many plain values, and nothing else, that each is not state by itself."""
    return len(items) > LONG and all(isinstance(item, SCALARS) for item in items)


def is_array(value: object) -> TypeGuard[Any]:
    """Whether it is an array of NumPy's, which need not be there."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)
