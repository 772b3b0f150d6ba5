"""Run operators without values, by torch's own shape functions.

A tensor stays a tensor of the CPU, on memory that is never touched, which costs address space only:
autograd, autocast, views and addresses are those of a run with values. What is made of Python's
numbers and of integers that are at hand is computed, since it costs nothing; the rest has no values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.device.observe.fallback import EmulationLimit, run_operator
from graphdoctor.device.observe.operators import (
    Call,
    OperatorFacts,
    replaced,
    tensors_of,
    written_tensors,
)
from graphdoctor.device.observe.storages import StorageTable, Values
from graphdoctor.values.host_events import AssumedValue, HostEvent

_META = torch.device("meta")
# Views that their schemas do not call views.
_VIEWS = frozenset({"_unsafe_view", "lift_fresh", "set_", "resize_"})

# Their shape functions take bfloat16 only, as CUDA does; their kernels on the CPU take any type.
_NARROW_ONLY = frozenset({"_grouped_mm"})
# Their shape functions give strides that neither the CPU's nor CUDA's kernels have.
_CONTIGUOUS = frozenset({"native_layer_norm_backward"})

Tell = Callable[[HostEvent], None]


class Shapes:
    """Runs operators on shapes only, and tells of each value that had to be assumed."""

    def __init__(self, table: StorageTable, tell: Tell) -> None:
        self._table = table
        self._tell = tell
        self._known: dict[Hashable, Shaped] = {}  # layers of a model are alike

    def run(self, call: Call) -> Any:
        """Raises `EmulationLimit` for an operator without a shape function."""
        if _only_looks(call.facts):
            return run_operator(call)
        worst = max((info.values for info in call.infos), default=Values.TRUE)
        if worst is not Values.NONE and self._can_compute(call):
            return self._compute(call, worst)
        assume = ASSUMED.get(call.facts.base_name)
        found = assume(call) if assume is not None else None
        if found is None:
            return self._shaped(call)
        result, what = found
        for tensor in tensors_of(result):
            has_some = tensor.numel() <= MOST_ELEMENTS and call.facts.base_name in READS
            self._mark_new(tensor, call, Values.ASSUMED if has_some else Values.NONE)
        if what:
            self._assume(call, what)
        return result

    def _compute(self, call: Call, worst: Values) -> Any:
        result = run_operator(call)
        if worst is Values.ASSUMED:  # and so is what comes of it
            for tensor in tensors_of(result):
                self._mark_new(tensor, call, Values.ASSUMED)
            self._mark_written(call)
            if call.facts.base_name in READS:
                self._assume(call, needs_value(result))
        return result

    def _mark_new(self, tensor: torch.Tensor, call: Call, values: Values) -> None:
        info = self._table.info(tensor)
        if info not in call.infos:
            info.values = values

    def _mark_written(self, call: Call, *, lost: bool = False) -> None:
        """What a call `lost`, since it did not compute: a single number is assumed to be as before."""
        for tensor in written_tensors(call.facts, call.args, call.kwargs):
            info = self._table.info(tensor)
            now = Values.NONE if lost and tensor.numel() > 1 else Values.ASSUMED
            info.values = max(info.values, now)

    def _assume(self, call: Call, what: str) -> None:
        self._tell(AssumedValue(call.facts.name, value=what))

    def _can_compute(self, call: Call) -> bool:
        """Whether all of it is small, or work of the host on values that are there."""
        if not call.on_cuda and all(info.values is Values.TRUE for info in call.infos):
            return True
        if any(tensor.numel() > MOST_ELEMENTS for tensor in call.inputs):
            return False
        if call.facts.base_name in READS:
            return True
        try:
            made = self._on_meta(call).made
        except Exception:  # whatever a shape function raises: the operator itself will say it
            return True
        return all(tensor.numel() <= MOST_ELEMENTS for tensor in tensors_of(made))

    def _shaped(self, call: Call) -> Any:
        try:
            shaped = self._on_meta(call)
        except NotImplementedError as error:
            if not call.func._schema.returns:  # it only writes, as fused optimizers do
                self._mark_written(call, lost=True)
                return None
            raise EmulationLimit(
                f"{call.facts.name} cannot be run without values, because it has no shape function:"
                " analyze the step with values"
            ) from error

        def placed(meta: torch.Tensor) -> torch.Tensor:
            given = shaped.given.get(id(meta))
            return self._new(meta, call) if given is None else call.inputs[given]

        self._mark_written(call, lost=True)
        return replaced(shaped.made, torch.Tensor, placed)

    def _on_meta(self, call: Call) -> Shaped:
        arguments = _seen_of(call.args), _seen_of(call.kwargs), _first_places(call)
        key = (id(call.func), torch.get_default_dtype(), *arguments)
        try:
            found = self._known.get(key)
        except TypeError:  # an argument that has no hash, such as an object of a library
            return _on_meta(call)
        if found is None:
            found = self._known[key] = _on_meta(call)
        return found

    def _new(self, meta: torch.Tensor, call: Call) -> torch.Tensor:
        """A tensor of this shape; a single number, and what comes to the host, gets a value."""
        numel = meta.numel()
        is_read = numel == 1 or (not call.on_cuda and numel <= MOST_ELEMENTS)
        if meta.layout is not torch.strided:
            raise EmulationLimit(f"A tensor of layout {meta.layout} cannot be made without values.")
        tensor = _without_filling(
            lambda: torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype, device="cpu")
        )
        if is_read:
            tensor.fill_(int(call.facts.base_name in _HOLDS))
        self._table.info(tensor).values = Values.ASSUMED if is_read else Values.NONE
        return tensor


def untouched_like(tensor: torch.Tensor, memory: torch.UntypedStorage) -> torch.Tensor:
    """A tensor of the CPU with this one's shape, on `memory`."""
    made = torch.empty(0, dtype=tensor.dtype)
    return made.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())


def _without_filling(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Deterministic torch fills new memory, which would make it real."""
    if not torch.are_deterministic_algorithms_enabled():
        return make()
    switch: Any = torch.utils.deterministic
    fills = switch.fill_uninitialized_memory
    switch.fill_uninitialized_memory = False
    try:
        return make()
    finally:
        switch.fill_uninitialized_memory = fills


def untouched_memory(nbytes: int) -> torch.UntypedStorage:
    """Memory that is there by its address only, until somebody writes into it."""
    return _without_filling(
        lambda: torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    ).untyped_storage()


def _only_looks(facts: OperatorFacts) -> bool:
    """Whether it touches no memory: it makes a view, or changes one's shape in place."""
    if facts.base_name in _VIEWS or "inplace_view" in facts.tags:
        return True
    return facts.aliases and not facts.written_args and not facts.written_kwargs


@dataclass(frozen=True, slots=True)
class Shaped:
    """A call's result on the meta device; `given` says which of the call's inputs a part of it is."""

    made: Any
    given: dict[int, int]  # by the id of the meta tensor
    twins: tuple[torch.Tensor, ...]  # kept, so that no other tensor gets one of these ids


def _seen_of(value: Any) -> Hashable:
    """All of an argument that its operator's shape function can see."""
    if isinstance(value, torch.Tensor):
        return (value.size(), value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_seen_of, value))
    if isinstance(value, dict):
        return tuple((name, _seen_of(item)) for name, item in value.items())
    return (type(value), value)


def _first_places(call: Call) -> tuple[int, ...]:
    """For each tensor argument its first place among them: which of them are one tensor."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(each), place) for place, each in enumerate(call.inputs))


def _on_meta(call: Call) -> Shaped:
    twins: dict[int, torch.Tensor] = {}
    given: dict[int, int] = {}
    places = dict(zip(map(id, call.inputs), _first_places(call), strict=True))

    def twin(tensor: torch.Tensor) -> torch.Tensor:
        found = twins.get(id(tensor))
        if found is None:
            if tensor.layout is not torch.strided or tensor.is_nested:
                raise EmulationLimit(
                    f"{call.facts.name} got a sparse or nested tensor, which has no shape without"
                    " values: analyze the step with values"
                )
            narrow = call.facts.base_name in _NARROW_ONLY and tensor.is_floating_point()
            dtype = torch.bfloat16 if narrow else tensor.dtype
            found = twins[id(tensor)] = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=dtype, device=_META
            )
            given[id(found)] = places[id(tensor)]
        return found

    with torch._C.DisableTorchFunction():
        args = replaced(call.args, torch.Tensor, twin)
        kwargs = replaced(call.kwargs, torch.Tensor, twin)
        if "device" in kwargs:
            kwargs["device"] = _META
        for name in ("generator", "pin_memory"):
            if name in kwargs:
                kwargs[name] = None
        made = call.func(*args, **kwargs)
        if call.facts.base_name in _NARROW_ONLY:
            made = made.to(kwargs.get("out_dtype") or call.inputs[0].dtype)
        if call.facts.base_name in _CONTIGUOUS:
            made = replaced(made, torch.Tensor, torch.Tensor.contiguous)
    return Shaped(made, given, tuple(twins.values()))


_EVERYTHING = "true of every element"
_DISTINCT = "of distinct values"
# Numbers for which "everything is as it should be" is one, or True; of all others it is 0, or False.
_HOLDS = frozenset({"all", "_is_all_true"})
MOST_ELEMENTS = 2**18  # of a tensor that is computed: a mask of 512 by 512 tokens

# Operators that hand values, or sizes that depend on values, to the host.
READS = frozenset(
    {
        "_local_scalar_dense", "equal", "allclose", "nonzero", "masked_select", "unique_consecutive",
        "_unique", "_unique2", "unique_dim", "unique_dim_consecutive", "repeat_interleave", "bincount",
        "nms",
    }
)  # fmt: skip

Assumption = tuple[Any, str]  # the result, and what it is assumed to be; "": nothing


def needs_value(result: Any) -> str:
    """How a result that was computed from assumed values is said."""
    if isinstance(result, (bool, int, float, complex)):
        return repr(result)
    items = result if isinstance(result, (list, tuple)) else (result,)
    sizes = [tuple(item.shape) for item in items if isinstance(item, torch.Tensor)]
    return f"of shape {sizes[0]}" if sizes else repr(result)


def _number(call: Call) -> Assumption:
    dtype = call.inputs[0].dtype
    value: Any = False if dtype is torch.bool else 0j if dtype.is_complex else 0
    value = 0.0 if dtype.is_floating_point else value
    return value, repr(value)


def _different(call: Call) -> Assumption:
    return False, "False"


def _everywhere(call: Call) -> Assumption:
    """The coordinates of all elements."""
    (given,) = call.inputs
    if given.numel() * max(1, given.dim()) <= MOST_ELEMENTS:
        return torch.ones(given.shape, dtype=torch.bool).nonzero(), _EVERYTHING
    return torch.empty((given.numel(), given.dim()), dtype=torch.int64), _EVERYTHING


def _all_selected(call: Call) -> Assumption:
    given, mask = call.inputs
    numel = torch.broadcast_shapes(given.shape, mask.shape).numel()
    return torch.zeros(numel, dtype=given.dtype), _EVERYTHING


def _distinct(call: Call) -> Assumption:
    """All outputs of the `unique` family along its whole length, or along one dimension."""
    given = call.inputs[0]
    along = call.args[1] if "dim" in call.facts.base_name.split("_") else None
    if call.facts.base_name == "unique_consecutive":
        along = call.args[3] if len(call.args) > 3 else call.kwargs.get("dim")
    length = given.numel() if along is None else given.shape[along]
    values = torch.zeros(given.numel() if along is None else given.shape, dtype=given.dtype)
    inverse = torch.arange(length)
    inverse = inverse.view(given.shape) if along is None else inverse
    counts = torch.ones(length, dtype=torch.int64)
    parts = (values, inverse) if call.facts.base_name == "_unique" else (values, inverse, counts)
    return parts, _DISTINCT


def _once_each(call: Call) -> Assumption | None:
    """`repeat_interleave` of repeats alone: which element each place of the result comes from."""
    repeats = call.inputs[0]
    size = call.kwargs.get("output_size")
    if size is not None:
        return torch.zeros(size, dtype=repeats.dtype), f"of {size} places, as output_size says"
    return torch.arange(repeats.numel(), dtype=repeats.dtype), "1 for every element"


def _counted(call: Call) -> Assumption:
    least = call.args[2] if len(call.args) > 2 else call.kwargs.get("minlength", 0)
    weights = call.inputs[1:]
    is_wide = bool(weights) and weights[0].dtype is not torch.float32
    dtype = torch.int64 if not weights else torch.float64 if is_wide else torch.float32
    size = max(1, least)
    return torch.zeros(size, dtype=dtype), f"of {size} bins"


def _whole_masks(call: Call) -> Assumption | None:
    """Indexing by a mask: as by the coordinates of all its elements."""
    given, indices = call.args[0], call.args[1]
    masks = [
        each for each in indices if each is not None and each.dtype in (torch.bool, torch.uint8)
    ]
    if not masks:
        return None
    expanded: list[torch.Tensor | None] = []
    for each in indices:
        if each is None or all(each is not mask for mask in masks):
            expanded.append(None if each is None else _shape_of(each))
        else:
            places = torch.empty(each.numel(), dtype=torch.int64, device="meta")
            expanded.extend([places] * each.dim())
    with torch._C.DisableTorchFunction():
        made = torch.ops.aten.index.Tensor(_shape_of(given), expanded)
    return torch.empty_strided(made.size(), made.stride(), dtype=made.dtype), _EVERYTHING


def _ctc_loss(call: Call) -> Assumption:
    """As large as the longest targets could make it; no value is needed. Source: LossCTC.cpp."""
    scores, targets = call.inputs[:2]
    length = targets.shape[-1]
    steps, batch, _ = scores.shape
    made = scores.new_empty(batch), scores.new_empty(batch, steps, 2 * length + 1)
    return made, ""


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


ASSUMED: Mapping[str, Callable[[Call], Assumption | None]] = {
    "_local_scalar_dense": _number,
    "equal": _different,
    "allclose": _different,
    "nonzero": _everywhere,
    "masked_select": _all_selected,
    "unique_consecutive": _distinct,
    "_unique": _distinct,
    "_unique2": _distinct,
    "unique_dim": _distinct,
    "unique_dim_consecutive": _distinct,
    "repeat_interleave": _once_each,
    "bincount": _counted,
    "nms": lambda call: (torch.arange(call.inputs[0].shape[0]), "that no box is dropped"),
    "index": _whole_masks,
    "_ctc_loss": _ctc_loss,
    "_ctc_loss_backward": lambda call: (torch.empty_like(call.inputs[1]), ""),
}
