"""What host code did in a step that is no operator: a class for each kind of event, and the calls by name.

What CUDA, Dynamo and the host's time make of an event stands in its class, so that a call that
synchronizes is named in one place: a constant at the end of this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Union

from msgspec import Struct

from graphdoctor.values.locations import Location

OF_ENVIRONMENT = "the environment variable "  # before its name, in an event of the kind "outside"

HostKind = Literal[
    "host-random",  # Python's or NumPy's generator was drawn from
    "host-time",  # a clock was read
    "python-state",  # a line changed Python state, named by its path; the detail says from what to what
    "state-branch",  # a later step differs by the state of this name; the detail says where and when
    "clock-branch",  # the step differs an hour later, by the clocks of this name; the detail says where
    "running-iterator",  # an iterator or a queue that outlives the step gave its next item
    "outside",  # the step read a file, a socket, a process or an environment variable
    "raises-later",  # the step fails with the error that is the name, after so many calls as the detail says
    "other-thread",  # another thread was given work, which is not recorded
]


class HostEvent(Struct, frozen=True):
    """Something that the host did before operator `op_index`. `name` is what a person would write.

    `is_refused`: CUDA refuses the call in a capture. `ends_graph`: Dynamo leaves it to Python.
    `host_waits`: the host waits there for the device.
    """

    is_refused: ClassVar[bool] = False
    ends_graph: ClassVar[bool] = False
    host_waits: ClassVar[bool] = False

    name: str  # "torch.cuda.synchronize()"
    op_index: int = 0
    location: Location | None = None
    stack: tuple[Location, ...] = ()
    module: str = ""


class Sync(HostEvent, frozen=True, tag="sync"):
    """The host waits for a stream, an event or the device."""

    is_refused = ends_graph = host_waits = True


class Query(HostEvent, frozen=True, tag="query"):
    """The host asks a stream, an event or a collective whether it is done."""

    is_refused = ends_graph = True


class TensorRepr(HostEvent, frozen=True, tag="tensor-repr"):
    """`print(t)`, `repr(t)` or `f"{t}"` of a tensor on the device."""

    is_refused = ends_graph = host_waits = True


class GraphReplay(HostEvent, frozen=True, tag="graph-replay"):
    """The step replays a CUDA graph of its own."""

    is_refused = ends_graph = True


class Barrier(HostEvent, frozen=True, tag="barrier"):
    """All ranks wait for each other, and the host for its device."""

    is_refused = host_waits = True


class ObjectsExchanged(HostEvent, frozen=True, tag="object-collective"):
    """Python objects travel between ranks as tensors, which the host reads."""

    is_refused = host_waits = True


class PinnedAllocation(HostEvent, frozen=True, tag="pinned-allocation"):
    """cudaHostAlloc."""

    ends_graph = True


class CaptureQuery(HostEvent, frozen=True, tag="capture-query"):
    """The step asks whether it is captured."""


class StreamSwitch(HostEvent, frozen=True, tag="stream-switch"):
    """`torch.cuda.stream(s)` or `set_stream(s)`."""


class CompileBypassed(HostEvent, frozen=True, tag="compile-bypassed"):
    """The emulated device runs what `torch.compile` was given eagerly."""


class MayBeRefused(HostEvent, frozen=True):
    """A call that a capture refuses in some states. `refusal` is the error that it raises, "" if none."""

    refusal: str = ""


class RngState(MayBeRefused, frozen=True, tag="rng-state"):
    """The CUDA generator's state is read or set."""

    ends_graph = True


class UnorderedWork(MayBeRefused, frozen=True, tag="stream-order"):
    """Work of another stream, without a fork or a join if it is refused."""


class EarlierGraph(MayBeRefused, frozen=True, tag="earlier-graph"):
    """A backward pass reaches autograd's nodes from before the step.

    `kept_by` are the tensors or variables that keep the node, "" for a node that is no accumulation.
    """

    kept_by: str = ""


class DdpOnDefaultStream(MayBeRefused, frozen=True, tag="default-stream-ddp"):
    """A DDP module that was made on the default stream runs."""


class DdpTiming(MayBeRefused, frozen=True, tag="ddp-timing"):
    """DDP reads its timers in a capture of the user's own."""


class ColdGroup(MayBeRefused, frozen=True, tag="cold-group"):
    """A process group is used for the first time."""


class RefusedOptimizer(HostEvent, frozen=True, tag="refused-optimizer"):
    """torch's own health check raises for this optimizer in a capture."""

    class_name: str = ""


class AttentionDropout(HostEvent, frozen=True, tag="attention-dropout"):
    """Attention drops elements by the kernel that is the name. `mask` describes the attention mask."""

    mask: str = ""


class AssumedValue(HostEvent, frozen=True, tag="assumed-value"):
    """A value was needed that no shape tells; `value` was taken for it."""

    value: str = ""


class CutShort(HostEvent, frozen=True, tag="cut-short"):
    """The step failed with the values that were assumed."""

    error: str = ""


class PythonEvent(HostEvent, frozen=True, tag="python", kw_only=True):
    """What Python code reads, draws, changes or decides."""

    kind: HostKind
    detail: str = ""


if TYPE_CHECKING:
    AnyEvent = HostEvent
else:
    AnyEvent = Union[  # noqa: UP007  (for msgspec, which decodes a union by its tags)
        Sync, Query, TensorRepr, GraphReplay, Barrier, ObjectsExchanged, PinnedAllocation,
        CaptureQuery, StreamSwitch, CompileBypassed, RngState, UnorderedWork, EarlierGraph,
        DdpOnDefaultStream, DdpTiming, ColdGroup, RefusedOptimizer, AttentionDropout, AssumedValue,
        CutShort, PythonEvent,
    ]  # fmt: skip

# Calls that the devices watch. On a GPU each is found by its name (`device/real.py`), so that a new one is one line
# here; on the emulated device its stand-in reports it.
SYNCHRONIZE = Sync("torch.cuda.synchronize()")
ACCELERATOR_SYNCHRONIZE = Sync("torch.accelerator.synchronize()")
STREAM_SYNCHRONIZE = Sync("torch.cuda.Stream.synchronize()")
EVENT_SYNCHRONIZE = Sync("torch.cuda.Event.synchronize()")
STREAM_QUERY = Query("torch.cuda.Stream.query()")
EVENT_QUERY = Query("torch.cuda.Event.query()")
ELAPSED_TIME = Query("torch.cuda.Event.elapsed_time()")
PIN_MEMORY = PinnedAllocation("Tensor.pin_memory()")
REPLAY = GraphReplay("torch.cuda.CUDAGraph.replay()")
WATCHED_CALLS: tuple[HostEvent, ...] = (
    SYNCHRONIZE,
    ACCELERATOR_SYNCHRONIZE,
    STREAM_SYNCHRONIZE,
    EVENT_SYNCHRONIZE,
    STREAM_QUERY,
    EVENT_QUERY,
    ELAPSED_TIME,
    PIN_MEMORY,
    REPLAY,
)
IS_CAPTURING = CaptureQuery("torch.cuda.is_current_stream_capturing()")
