"""The guard of a model's state: whether all that its modules hold is what was captured.

Plain dictionaries, and so the attributes of modules and objects, are checked by version: nothing is compared
while nothing is written. What was written, and containers without a version, are compared by identity, in a few
passes in C. Each tensor's address and layout is checked in every call, since `tensor.data = ...` writes to no
dictionary.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from graphdoctor.graphs.calls.signature import is_constant
from graphdoctor.graphs.guards.differences import NOTHING, changed, is_as_good, joined
from graphdoctor.graphs.guards.reachable import Entries, ReachableState
from graphdoctor.graphs.tensor_layouts import TensorLayouts, are_at
from graphdoctor.target.state.dict_versions import DictVersions

_address = torch.Tensor.data_ptr
_version = torch.Tensor._version.__get__  # type: ignore[attr-defined]
_call = getattr(operator, "call")  # noqa: B009  (since Python 3.11; typeshed has it for newer ones)
_wants_gradient = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]


class Guard:
    """Watches what the modules that `roots` reach hold: attributes, containers, objects, hooks, tensors.

    Everything has to be the same object, or a constant that equals it. Holds the memory of all tensors that
    were reached, so that a replay never reads freed memory. `around` is the module whose forward a graph
    replaces during calls. What only `without` leads to is not watched.

    `is_same()` is the check: fast, and False also if an equal constant was assigned again. Then
    `difference()` decides, and accepts the new object from there on.
    """

    def __init__(
        self,
        roots: Mapping[str, object],
        *,
        around: torch.nn.Module | None = None,
        without: Sequence[object] = (),
    ) -> None:
        self._roots, self._around, self._without = roots, around, without
        self.is_same: Callable[[], bool] = self._watch()

    def _watch(self) -> Callable[[], bool]:
        found = ReachableState(self._roots, self._around, self._without)
        self._entries = [*found.others, *found.versioned]
        self._empty, self._hooks = found.empty, found.hooks
        self.tensors = found.all_tensors
        self._paths = [path for path, _ in found.tensors]
        self._held = tensors = [tensor for _, tensor in found.tensors]
        self._wanted = list(map(_wants_gradient, tensors))
        self._storages = [tensor.untyped_storage() for tensor in found.all_tensors]
        self._addresses: list[int | None] = list(map(_address, tensors))
        self._layouts = TensorLayouts(tensors)
        # The values of these may have become numbers in the graph.
        self._on_cpu = [
            place
            for place, tensor in enumerate(tensors)
            if is_on_cpu(tensor) and not tensor.is_inference()
        ]
        self._versions = [_version(tensors[place]) for place in self._on_cpu]
        self._by_identity = _SameItems(found.versioned), _SameItems(found.others)
        versions = DictVersions([each.live for each in found.versioned], self._by_identity[0].check)
        return self._check(versions.checker())

    def _check(self, dicts_are_same: Callable[[], bool]) -> Callable[[], bool]:
        """The check of one call, as one function of local variables."""
        nothing = [*(empty for _, empty in self._empty), *self._hooks]
        others_are_same = self._by_identity[1].check if self._by_identity[1].lives else None
        tensors, addresses, layouts = self._held, self._addresses, self._layouts
        every, unpacked = list(range(len(tensors))), tuple(tensors)
        on_cpu, versions = [tensors[place] for place in self._on_cpu], self._versions

        def is_same() -> bool:
            try:
                return (
                    dicts_are_same()
                    and not any(nothing)
                    and (others_are_same is None or others_are_same())
                    and are_at(tensors, addresses, every)
                    and (not tensors or layouts.is_known(*unpacked) or layouts.recheck(tensors))
                    and (not on_cpu or [*map(_version, on_cpu)] == versions)
                )
            except Exception:  # an attribute is gone
                return False

        return is_same

    def gradients_are_same(self) -> bool:
        """Whether the same tensors require gradients as at the capture."""
        return list(map(_wants_gradient, self._held)) == self._wanted

    def difference(self, *, grad: bool = False) -> str:
        """What changed, in one sentence; "" if nothing did, whatever equal constants were assigned again.

        With `grad`, what requires gradients counts.
        """
        if any(self._hooks):
            return "a hook was registered on a module, which a replay would not run"
        is_container_new = False
        for entries in self._entries:
            for path, before, now in _replaced(entries):
                if is_as_good(before, now):
                    continue
                if not self._has_content_of(before, now):
                    return changed(path, before, now)
                is_container_new = True
        if why := next(self._other_differences(grad=grad), ""):
            return why
        if is_container_new:
            self.is_same = self._watch()
        else:
            self._accept()
        return ""

    def _accept(self) -> None:
        """Compare with the objects that are there now, which equal those before."""
        for entries in self._entries:
            now = entries.now()
            entries.before.clear()
            entries.before.update(now)
        for each in self._by_identity:
            each.refresh()

    def _other_differences(self, *, grad: bool) -> Iterator[str]:
        yield from (
            f"{joined(path, next(iter(held)))} is new" for path, held in self._empty if held
        )
        for place, (path, tensor) in enumerate(zip(self._paths, self._held, strict=True)):
            if tensor.data_ptr() != self._addresses[place]:
                yield f"{path} is at another address than when it was captured"
            for name, before, now in self._layouts.differences(place, tensor):
                yield f"the {name} of {path} changed from {before} to {now}"
            if grad and tensor.requires_grad != (wanted := self._wanted[place]):
                yield f"requires_grad of {path} changed from {wanted} to {tensor.requires_grad}"
        for place, version in zip(self._on_cpu, self._versions, strict=True):
            if _version(self._held[place]) != version:
                yield f"the values of {self._paths[place]}, a tensor on the CPU, changed"

    def _has_content_of(self, before: object, now: object) -> bool:
        """Whether a container has the constants that the one before had at the capture."""
        captured = next((each for each in self._entries if each.live is before), None)
        if captured is None or type(now) not in (dict, list) or type(now) is not type(before):
            return False
        held: Any = now
        items: dict[Any, Any] = held if isinstance(now, dict) else dict(enumerate(held))
        return (
            len(items) == len(captured.before)
            and all(map(is_as_good, captured.before, items))
            and all(map(is_as_good, captured.before.values(), items.values()))
        )


def _replaced(entries: Entries) -> Iterator[tuple[str, object, object]]:
    """The path of each entry that is another object, what it was and what it is."""
    before, now = entries.before, entries.now()
    if entries.readers == (iter,):
        items, items_now = [*before.values()], [*now.values()]
        if all(map(is_constant, (*items, *items_now))):
            if not is_as_good(tuple(items), tuple(items_now)):
                yield entries.path, items, items_now
            return
        if len(items) != len(items_now):
            yield f"the length of {entries.path}", len(items), len(items_now)
            return
    for key in {**before, **now}:
        was, found = before.get(key, NOTHING), now.get(key, NOTHING)
        if was is not found:
            yield joined(entries.path, key), was, found
    if len(entries.readers) > 1 and not all(map(is_as_good, before, now)):
        yield f"the order of keys in {entries.path}", [*before], [*now]


class _SameItems:
    """Whether containers hold the very objects that they held, in a few passes in C."""

    def __init__(self, entries: Sequence[Entries]) -> None:
        self.lives = [each.live for each in entries]
        rows = [(reader, each.live) for each in entries for reader in each.readers]
        self._readers, self._read = [row[0] for row in rows], [row[1] for row in rows]
        self.items: list[object] = []
        self.counts: list[int] = []
        self.refresh()

    def refresh(self) -> None:
        self.items[:], self.counts[:] = self._items_now(), self._counts_now()

    def check(self) -> bool:
        """Raises KeyError if an attribute is gone."""
        now = self._items_now()
        return (
            self._counts_now() == self.counts
            and len(now) == len(self.items)
            and all(map(operator.is_, now, self.items))
        )

    def _items_now(self) -> list[object]:
        return [*chain.from_iterable(map(_call, self._readers, self._read))]

    def _counts_now(self) -> list[int]:
        return [*map(operator.length_hint, self.lives)]


def is_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether a CPU tensor's values may be numbers in a graph: the graph itself copies from pinned memory."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_pinned()
