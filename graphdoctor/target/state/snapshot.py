"""The tensors and values of the objects that a step uses, by name, and a snapshot of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphdoctor.target.state.attributes import counts_for_itself
from graphdoctor.target.state.globals import SavedGlobals
from graphdoctor.target.state.kinds import digest, kind_of
from graphdoctor.target.state.kinds.kind import Restore, Value, Visit
from graphdoctor.target.state.paths import StatePath
from graphdoctor.target.state.saved_tensor import (
    USERS_MEMORY,
    Memory,
    Saving,
    restore_contents,
    wraps_others,
)
from graphdoctor.target.state.tree import unused
from graphdoctor.target.state.walk import Walk


class Snapshot:
    """Everything that the roots can reach, and the process's generators and switches, as they were.

    `restore` may be called any number of times: it puts the same objects back into the same places,
    and the same bytes into the same memory. `limits` names what cannot be put back.
    """

    def __init__(self, saved: list[Restore], limits: tuple[str, ...]) -> None:
        self._saved = saved
        self._globals = SavedGlobals()
        self.limits = limits

    def restore(self) -> None:
        with plain_torch():
            for restore in self._saved:
                restore()
        self._globals.restore()

    @contextmanager
    def around(self) -> Iterator[None]:
        """Whatever runs in this block runs from this state, and leaves this state behind."""
        self.restore()
        try:
            yield
        finally:
            self.restore()


def snapshot(roots: Mapping[str, object], *, memory: Memory = USERS_MEMORY) -> Snapshot:
    """Save the state of everything that `roots` reach.

    Costs one copy of the tensors' memory; of what is ours, a copy of what is written later.
    Without roots it is the process alone, and all of it: `sys.path` too, which a step may count on having
    changed.
    """
    saved: list[Restore] = []
    if not roots:
        saved += (partial(list.__setitem__, sys.path, slice(None), list(sys.path)),)
        saved += (partial(setattr, sys, "path", sys.path),)
    limits: list[str] = []
    saving = Saving(memory)
    with plain_torch():
        for path, value, _ in Walk(roots, with_empty=True):
            kind = kind_of(value)
            saved.extend(kind.save(value, saving))
            if kind.is_iterator:
                limits.append(
                    f"{path} is a running iterator: its position cannot be put back, and no replay"
                    " advances it"
                )
    contents = partial(restore_contents, list(filter(None, saving.storages.values())))
    return Snapshot([*saved, *saving.last, contents], tuple(limits))


def named_tensors(
    roots: Mapping[str, object], *, with_gradients: bool = True
) -> dict[str, torch.Tensor]:
    """Every tensor that the roots reach, by path, such as "model.weight.grad"."""
    tensors: dict[str, torch.Tensor] = {}
    with plain_torch():
        for path, value, _ in Walk(roots):
            if isinstance(value, torch.Tensor) and (with_gradients or not path.is_gradient):
                tensors[unused(str(path), tensors)] = value
    return tensors


def named_values(roots: Mapping[str, object]) -> dict[str, Value]:
    """Every number, string, flag and None by path; of containers their length, of memory its contents."""
    return named_state(roots)[1]


NamedState = tuple[dict[str, torch.Tensor], dict[str, Value]]


def named_state(
    roots: Mapping[str, object], *, leaves: Container[int] = (), with_gradients: bool = True
) -> NamedState:
    """The tensors and the values, found in one walk, which does not look into `leaves`, given by id."""
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Value] = {}
    with plain_torch():
        for path, value, shown in Walk(roots, leaves=leaves):
            if isinstance(value, torch.Tensor):
                if with_gradients or not path.is_gradient:
                    tensors[unused(str(path), tensors)] = value
            elif shown and (found := digest(value)) is not None:
                values[unused(str(found.path_of(path)), values)] = found.value
    return tensors, values


@contextmanager
def plain_torch() -> Iterator[None]:
    """Torch without the modes that observe or emulate: what happens here is no part of the step."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether there is memory for its elements: none in a storage that is freed, or behind what wraps others."""
    with torch._C.DisableTorchFunction():
        if tensor.layout != torch.strided or tensor.is_nested:
            return True
        if not tensor.numel() or tensor.is_meta:
            return True
        return not wraps_others(tensor) and tensor.untyped_storage().nbytes() > 0


class Reader(NamedTuple):
    """A value by its path. `now` stands for it, as `again` does when it is called."""

    path: StatePath
    holder: object
    value: object
    now: object
    again: Callable[[], object]
    cost: int  # how many values a look goes through


def readers_of(roots: Mapping[str, object], paths: Container[str]) -> Iterator[Reader]:
    """For each of these paths; none for what torch's own classes keep."""
    walk = Walk(roots)
    for visit in walk:
        if kind_of(visit.value).is_scalar or counts_for_itself(visit.value):
            continue
        children = list(walk.children(visit))
        for child in children:
            found = digest(child.value)
            if found is not None and str(path := found.path_of(child.path)) in paths:
                again = partial(_again, walk, visit, path)
                yield Reader(path, visit.value, child.value, found.value, again, len(children))


def _again(walk: Walk, holder: Visit, path: StatePath) -> object:
    for child in walk.children(holder):
        if child.path == path.inner:
            found = digest(child.value)
            if found is not None and found.path_of(child.path) == path:
                return found.value
    return None
