"""What host code did in a step that is no operator: a class for each kind of event, and the calls by name.

What CUDA, Dynamo and the host's time make of an event stands in its class, so that a call that
synchronizes is named in one place: a constant at the end of this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Union

from msgspec import Struct

from graphdoctor.values.locations import Location


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
    """The CUDA generator's state is read or set. `seed` is what `manual_seed()` sets, None for another call."""

    ends_graph = True

    seed: int | None = None


class UnorderedWork(MayBeRefused, frozen=True, tag="stream-order"):
    """Work of another stream, without a fork or a join if it is refused."""


class EarlierGraph(MayBeRefused, frozen=True, tag="earlier-graph"):
    """A backward pass reaches autograd's nodes from before the step.

    `kept_by` are the tensors or variables that keep the node, none for a node that is no accumulation.
    """

    kept_by: tuple[str, ...] = ()


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


class PythonEvent(HostEvent, frozen=True):
    """What Python code reads, draws, changes or decides, in the run that is watched on the host only."""


class RandomDraw(PythonEvent, frozen=True, tag="host-random"):
    """Python's or NumPy's generator was drawn from."""


class ClockRead(PythonEvent, frozen=True, tag="host-time"):
    """A clock was read."""


class PythonStateChanged(PythonEvent, frozen=True, tag="python-state"):
    """A line changed the Python state of this name."""


class ItemTaken(PythonEvent, frozen=True, tag="running-iterator"):
    """An iterator or a queue that outlives the step gave its next item."""


class ReplacedBetweenSteps(PythonEvent, frozen=True, tag="replaced-between-steps"):
    """The program puts another tensor into the state of this path between its steps; the step reads it here."""


class OutsideQuery(PythonEvent, frozen=True, tag="outside"):
    """The step read a file, a socket, a process or an environment variable."""


class WorkForThread(PythonEvent, frozen=True, tag="other-thread"):
    """Another thread was given work, which is not recorded."""


class LaterStepDiffers(PythonEvent, frozen=True):
    """A later step runs other operators. `difference` says at which line and when, without a full stop."""

    difference: str = ""


class DiffersByState(LaterStepDiffers, frozen=True, tag="state-branch"):
    """The Python state that is the name makes the difference."""


class DiffersByClock(LaterStepDiffers, frozen=True, tag="clock-branch"):
    """The clocks that are the name make the difference, an hour later."""


class LaterStepRaises(PythonEvent, frozen=True, tag="raises-later"):
    """The step fails with the error that is the name, after so many calls."""

    calls: int = 0


if TYPE_CHECKING:
    AnyEvent = HostEvent
    AnyPythonEvent = PythonEvent
else:  # for msgspec, which decodes a union by its tags
    AnyPythonEvent = Union[  # noqa: UP007
        RandomDraw, ClockRead, PythonStateChanged, ItemTaken, ReplacedBetweenSteps, OutsideQuery,
        WorkForThread, DiffersByState, DiffersByClock, LaterStepRaises,
    ]  # fmt: skip
    AnyEvent = Union[  # noqa: UP007
        Sync, Query, TensorRepr, GraphReplay, Barrier, ObjectsExchanged, PinnedAllocation,
        CaptureQuery, StreamSwitch, CompileBypassed, RngState, UnorderedWork, EarlierGraph,
        DdpOnDefaultStream, DdpTiming, ColdGroup, RefusedOptimizer, AttentionDropout, AssumedValue,
        CutShort, AnyPythonEvent,
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
