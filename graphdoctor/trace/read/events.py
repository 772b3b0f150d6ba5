"""The events of a trace file as types, one for each category: a category says what is of use in an event.

msgspec knows the type by its tag and skips the rest where it stands, which then costs neither an object nor a string.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any, Literal

from msgspec import Struct, defstruct, field

from graphdoctor.trace.arrays import KINDS, NO_CORRELATION

TableName = Literal["device", "calls", "operators", "frames", "annotations", "overheads", "memory"]

# Of what a device did, with the places in KINDS. Capital letters are of 2021.
WORK_KINDS = {
    category: KINDS.index(kind)
    for kind, *categories in (
        ("kernel", "kernel", "Kernel"),
        ("memcpy", "gpu_memcpy", "Memcpy"),
        ("memset", "gpu_memset", "Memset"),
    )
    for category in categories
}
# "Runtime" is what torch-tb-profiler calls both of the first.
_CALLS = ("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "hip_driver")
TABLES: dict[str, TableName] = {
    **dict.fromkeys(WORK_KINDS, "device"),
    **dict.fromkeys(_CALLS, "calls"),
    **dict.fromkeys(("cpu_op", "Operator"), "operators"),
    **dict.fromkeys(("python_function",), "frames"),
    **dict.fromkeys(("user_annotation",), "annotations"),
    **dict.fromkeys(("overhead",), "overheads"),
}
_INSTANTS = "cpu_instant_event"
MEMORY = "[memory]"  # the name of an instant, of whatever category, that says what an allocator did
# Arrows, and spans that repeat what others say.
_OF_NO_USE = (
    *("ac2g", "fwdbwd", "forward_backward", "async_cpu_to_gpu", "async_gpu", "async", "Trace"),
    *("gpu_user_annotation", "cuda_sync", "cuda_event", "cuda_profiler_range"),
)


class MessageArgs(Struct, gc=False):
    """What a collective moves."""

    collective: Any = field(default=None, name="Collective name")
    elements: Any = field(default=None, name="In msg nelems")
    elements_out: Any = field(default=None, name="Out msg nelems")
    dtype: Any = None
    group: Any = field(default=None, name="Process Group Name")
    group_ranks: Any = field(default=None, name="Process Group Ranks")


class WorkArgs(MessageArgs, gc=False):
    """Of a kernel, a copy or a fill."""

    correlation: int | None = NO_CORRELATION
    device: int | str | None = None
    stream: int | str | None = None
    nbytes: int | float | str | None = field(default=None, name="bytes")
    graph: int | str | None = field(default=None, name="graph id")


class CallArgs(Struct, gc=False):
    correlation: int | None = NO_CORRELATION


class MemoryArgs(Struct, gc=False):
    block: Any = field(default=None, name="Bytes")
    allocated: Any = field(default=None, name="Total Allocated")
    reserved: Any = field(default=None, name="Total Reserved")
    memory_kind: Any = field(default=None, name="Device Type")
    memory_device: Any = field(default=None, name="Device Id")


class Unused(Struct, gc=False):
    """An event of which nothing is read."""


class Event(Struct, gc=False):
    """What all others have. Integers stay integers: a float would round them."""

    name: str | None = ""
    ts: int | float = 0
    dur: int | float = 0
    pid: int | str | None = 0
    tid: int | str | None = 0


class Span(Event, gc=False, kw_only=True):
    ph: Literal["X"]


class Work(Span, gc=False, kw_only=True):
    args: WorkArgs | None = None


class Call(Span, gc=False, kw_only=True):
    args: CallArgs | None = None


class Operator(Span, gc=False, kw_only=True):
    args: MessageArgs | None = None


class Instant(Event, gc=False, kw_only=True):
    args: MemoryArgs | None = None


EventType = type[Struct]


def types_of_categories() -> Mapping[str, EventType]:
    bases: dict[TableName, EventType] = {"device": Work, "calls": Call, "operators": Operator}
    return {
        **{
            category: _tagged(category, bases.get(table, Span))
            for category, table in TABLES.items()
        },
        **{category: _tagged(category, Unused) for category in _OF_NO_USE},
        _INSTANTS: _tagged(_INSTANTS, Instant),
    }


def _tagged(category: str, base: EventType) -> EventType:
    return defstruct(
        f"{base.__name__}Of{category}", [], bases=(base,), tag_field="cat", tag=category, gc=False
    )


def any_of(types: Mapping[str, EventType]) -> Any:
    """The union of these types, for a decoder."""
    return reduce(or_, types.values())
