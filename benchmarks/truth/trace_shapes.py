"""A trace file of torch.profiler -> what was recorded of its operators' arguments, beside `Trace.operators`.

Used by trace_ops.py and, on a GPU, by gpu/kernels.py.
"""

from __future__ import annotations

import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from graphdoctor.trace import Trace
from graphdoctor.trace.api import is_step_mark
from graphdoctor.trace.read.columns import ns
from graphdoctor.trace.read.decode import TABLES


class Shapes(Struct):
    """Of one operator; None where nothing was recorded."""

    dims: tuple[Any, ...] | None = field(default=None, name="Input Dims")
    strides: tuple[Any, ...] | None = field(default=None, name="Input Strides")
    dtypes: tuple[Any, ...] | None = field(default=None, name="Input type")
    concrete: tuple[Any, ...] | None = field(default=None, name="Concrete Inputs")


class _Event(Struct):
    ph: str = ""
    cat: str | None = None
    name: str | None = ""
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)
    args: Shapes | None = None


class _File(Struct):
    traceEvents: list[_Event]


def shapes_of(path: Path, trace: Trace) -> list[Shapes]:
    """In the order of the operators of the trace, which was read from this file."""
    content = path.read_bytes()
    text = gzip.decompress(content) if path.suffix == ".gz" else content
    found = [
        event
        for event in msgspec.json.decode(text, type=_File, strict=False).traceEvents
        if event.ph == "X"
        and TABLES.get(event.cat or "") == "operators"
        and not is_step_mark(event.name or "")
    ]
    start, length = (ns([getattr(event, of) for event in found])[0] for of in ("ts", "dur"))
    ordered = [found[row] for row in np.lexsort((-(start + length), start)).tolist()]
    names = [trace.names[name] for name in trace.operators.name.tolist()]
    assert [event.name for event in ordered] == names, f"{path} has other operators"
    return [event.args or Shapes() for event in ordered]
