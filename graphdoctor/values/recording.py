"""What one run of a step did, as plain values: operators, host events, inputs, state; no live tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Literal, TypeVar, Union

from msgspec import Struct

from graphdoctor.values.host_events import AnyEvent, AnyPythonEvent, HostEvent
from graphdoctor.values.locations import Lines, Location

Event = TypeVar("Event", bound=HostEvent)

Phase = Literal["forward", "backward", "optimizer"]
OriginKind = Literal["input", "state", "previous-iteration", "unknown"]
# COO in two states; compressed by rows, as CSR, or by columns, as its transposed
Sparse = Literal["", "coalesced", "uncoalesced", "by-rows", "by-columns"]


class TensorUse(Struct, frozen=True, gc=False, tag="tensor"):
    """One tensor as an operator saw it.

    `storage` numbers the storage: equal numbers mean equal memory, over all iterations of a
    recording. `offset` and `stride` count elements. `device` is the logical device. A `nested` one
    has no shape of its own: `shape` is then its number of elements. `sparse` is the layout of one that
    keeps its elements apart from their places.
    """

    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str  # "float32", without the "torch."
    device: str  # "cuda:0" or "cpu"
    itemsize: int
    pinned: bool = False
    nested: bool = False
    sparse: Sparse = ""

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize

    @property
    def is_cuda(self) -> bool:
        return self.device.startswith("cuda")


class Opaque(Struct, frozen=True, tag="opaque"):
    """An argument that is neither a tensor nor a number: dtype, layout, generator, ..."""

    text: str


if TYPE_CHECKING:
    Arg = Union[TensorUse, Opaque, bool, int, float, str, None, tuple["Arg", ...]]  # noqa: UP007  (a forward reference)
else:
    # msgspec decodes no recursive types. Operators take lists of lists at most; this is one deeper.
    _Plain = Union[TensorUse, Opaque, bool, int, float, str, None]  # noqa: UP007
    _List = Union[_Plain, tuple[Union[_Plain, tuple[_Plain, ...]], ...]]  # noqa: UP007
    Arg = Union[_Plain, tuple[_List, ...]]  # noqa: UP007


class Exchange(Struct, frozen=True, gc=False):
    """A collective between `ranks`. `is_beside`: what does not use its result goes on beside it."""

    ranks: int
    is_beside: bool


class Op(Struct, frozen=True, gc=False):
    """One ATen (or custom) operator call as the dispatcher saw it, below autograd.

    `device` is where it runs ("cuda:0" when any tensor it computes on or makes is there).
    `writes` are the storages it mutates through its arguments. `forward_index` is, for an
    operator of the backward pass, the index of the forward operator it belongs to. `location` is the
    nearest frame outside torch (for backward: of the forward operator); `stack` continues outwards.
    `fallback` says why the emulated result may differ from a GPU's, or is None. `kernels` are those
    that CUDA launches for it, where they are not the operator's own: a CPU build takes apart what CUDA has
    one call for, and the first of the parts has that call's kernels, the others none. `exchange` is None
    but for a collective.
    """

    index: int
    name: str  # "aten.add.Tensor"
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    outputs: tuple[TensorUse, ...]
    writes: tuple[int, ...]
    tags: tuple[str, ...]
    phase: Phase
    module: str  # "encoder.layer.0", "" outside any module
    device: str
    location: Location | None = None
    stack: tuple[Location, ...] = ()
    forward_index: int | None = None
    fallback: str | None = None
    kernels: int | None = None
    exchange: Exchange | None = None

    @property
    def base_name(self) -> str:
        """ "add_" of "aten.add_.Tensor", without namespace and overload; higher-order operators have neither."""
        return _base_name(self.name)

    @property
    def is_cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def may_draw(self) -> bool:
        """Whether torch tags it as one that draws random numbers, if with other arguments."""
        return "nondeterministic_seeded" in self.tags

    @property
    def inputs(self) -> tuple[TensorUse, ...]:
        """All tensor arguments, flattened, in order."""
        args = self.args
        if self.kwargs:
            args += tuple([value for _, value in self.kwargs])
        # Rules ask for those of each operator many times.
        if tuple not in map(type, args):
            return tuple([arg for arg in args if type(arg) is TensorUse])
        return tuple(tensors_in(args))

    @property
    def is_view(self) -> bool:
        """Makes no memory and writes none: launches no kernel."""
        if self.writes or not self.outputs:
            return False
        read = {use.storage for use in self.inputs}
        return all(use.storage in read for use in self.outputs)


@cache
def _base_name(name: str) -> str:
    parts = name.split(".", 2)
    return parts[1] if len(parts) > 1 else parts[0]


def tensors_in(args: Sequence[Arg]) -> list[TensorUse]:
    """The tensors among arguments, in order, also inside lists."""
    found: list[TensorUse] = []
    for arg in args:
        kind = type(arg)
        if kind is TensorUse:
            found.append(arg)  # type: ignore[arg-type]
        elif kind is tuple:
            found += tensors_in(arg)  # type: ignore[arg-type]
    return found


class External(Struct, frozen=True):
    """A storage that an iteration used and did not make.

    `name` is its path: "inputs[0]", "model.encoder.weight", or, for "previous-iteration", the
    operator that made it, with that operator's `location`.
    """

    storage: int
    origin: OriginKind
    name: str
    device: str
    location: Location | None = None


class Sample(Struct, frozen=True):
    """A few values of a tensor. `scale` is its largest magnitude, `eps` its rounding (0.0 of integers)."""

    values: tuple[float, ...]
    scale: float
    eps: float


class Leaf(Struct, frozen=True):
    """One leaf of a step's inputs or outputs: a tensor, or the repr of anything else."""

    path: str
    value: TensorUse | str
    has_nan: bool = False  # looked for in outputs only, as is the sample
    sample: Sample | None = None


class StateChange(Struct, frozen=True):
    """Host-visible state (a number, a list's length, a tensor's identity) that one iteration changed."""

    path: str  # "model.steps"
    before: str
    after: str
    kind: Literal["value", "rebound-tensor", "grown"]


class Iteration(Struct, frozen=True):
    """One run of the step. `externals` cover every storage that was used and not made in it."""

    index: int
    capturing: bool  # is_current_stream_capturing() answered true
    inputs: tuple[Leaf, ...]
    ops: tuple[Op, ...]
    events: tuple[AnyEvent, ...]
    externals: tuple[External, ...]
    outputs: tuple[Leaf, ...]
    changes: tuple[StateChange, ...]

    def events_of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def input_shapes(self) -> tuple[object, ...]:
        """Path, shape and dtype of each input; of what is no tensor the path alone."""
        return tuple(
            leaf.path
            if isinstance(leaf.value, str)
            else (leaf.path, leaf.value.shape, leaf.value.dtype)
            for leaf in self.inputs
        )


class OptimizerInfo(Struct, frozen=True):
    """An optimizer of the target, as far as capture cares. `lr_kind` tells a frozen rate from a live one."""

    path: str
    class_name: str
    capturable: bool | None  # None: the class has no such flag
    fused: bool
    lr_kind: Literal["float", "tensor"]
    is_scheduled: bool = False  # by a scheduler that was constructed with it


Unreached = Literal["steps", "later steps", "regions"]  # of which a budget left out some


class Recording(Struct, frozen=True, weakref=True):
    """Steady-state iterations of one target, as eager runs it and as it runs when it believes it is captured.

    Both series start from the same state and see the same sequence of fresh inputs.
    `host` holds what a separate run, observed on the host only, drew and read. It can be saved and
    read again with msgspec: as MessagePack, since JSON has no NaN.
    `limits` are the reasons why something could not be seen, `unreached` what the time did not do for.
    `lines` are those of a step that is a part of a function.
    """

    device: Literal["emulated", "cuda"]
    mode: Literal["inference", "training"]
    eager: tuple[Iteration, ...]
    captured: tuple[Iteration, ...]
    host: tuple[AnyPythonEvent, ...] = ()
    optimizers: tuple[OptimizerInfo, ...] = ()
    limits: tuple[str, ...] = ()
    lines: Lines | None = None
    unreached: tuple[Unreached, ...] = ()
