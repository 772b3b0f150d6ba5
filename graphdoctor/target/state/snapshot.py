"""The objects that a step uses -> their tensors and values by name, and a snapshot of them."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from enum import Enum
from functools import partial
from types import CellType, FunctionType
from typing import Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from graphdoctor.target.state.attributes import (
    attributes,
    has_walkable_state,
    is_of_library,
    slot_descriptors,
)
from graphdoctor.target.state.globals import SavedGlobals
from graphdoctor.target.state.plain import SCALARS, STREAMS, Value, is_array, is_memory, stands_for
from graphdoctor.target.state.saved import (
    Restore,
    saved_array,
    saved_bytes,
    saved_cell,
    saved_class,
    saved_context,
    saved_defaults,
    saved_deque,
    saved_dict,
    saved_list,
    saved_memory,
    saved_names,
    saved_random,
    saved_set,
    saved_slots,
    saved_stream,
    saved_variables,
)
from graphdoctor.target.state.saved_tensor import (
    SavedStorage,
    SavedTensor,
    restore_contents,
    saved_grad,
    saved_sparse,
)
from graphdoctor.target.state.tree import unused
from graphdoctor.target.state.variables import global_names, is_user_class
from graphdoctor.target.state.walk import BUILTIN_CONTAINERS, Walk


class Memory(Protocol):
    """What is known of memory, by storage."""

    def holds_values(self, storage: torch.UntypedStorage) -> bool:
        """Whether it may be read: false of what has no values, which is neither read nor put back."""

    def is_ours(self, storage: torch.UntypedStorage) -> bool:
        """Whether nobody knows its address but torch, so that it may lie elsewhere once it was written."""


class UsersMemory:
    """Memory of which nothing else is known: it holds values, and stays where it is."""

    def holds_values(self, storage: torch.UntypedStorage) -> bool:
        return True

    def is_ours(self, storage: torch.UntypedStorage) -> bool:
        return False


USERS_MEMORY: Memory = UsersMemory()


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
        saved += (saved_list(sys.path), partial(setattr, sys, "path", sys.path))
    grads: list[Restore] = []
    storages: dict[int, SavedStorage | None] = {}  # None: not held
    limits: list[str] = []
    with plain_torch():
        for path, value, _ in Walk(roots):
            if isinstance(value, torch.Tensor):
                saved.extend(_save_tensor(value, storages, memory))
                grads.append(saved_grad(value))
            elif not isinstance(value, SCALARS):
                saved.extend(_save_object(value))
                if (
                    type(value) not in BUILTIN_CONTAINERS
                    and isinstance(value, Iterator)
                    and hasattr(value, "__next__")
                    and not isinstance(value, STREAMS)
                ):
                    limits.append(
                        f"{path} is a running iterator: its position cannot be put back, and no replay"
                        " advances it"
                    )
    contents = partial(restore_contents, list(filter(None, storages.values())))
    return Snapshot([*saved, *grads, contents], tuple(limits))


def named_tensors(roots: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Every tensor that the roots reach, by path, such as "model.weight.grad"."""
    return named_state(roots)[0]


def named_values(roots: Mapping[str, object]) -> dict[str, Value]:
    """Every number, string, flag and None by path; what stands for containers and arrays as plain.py says."""
    return named_state(roots)[1]


def named_state(
    roots: Mapping[str, object], *, leaves: Container[int] = ()
) -> tuple[dict[str, torch.Tensor], dict[str, Value]]:
    """The tensors and the values, found in one walk, which does not look into `leaves`, given by id."""
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Value] = {}
    with plain_torch():
        for path, value, shown in Walk(roots, with_empty=False, leaves=leaves):
            if isinstance(value, torch.Tensor):
                tensors[unused(path, tensors)] = value
            elif not shown:
                continue
            elif (found := stands_for(path, value)) is not None:
                values[unused(found[0], values)] = found[1]
    return tensors, values


@contextmanager
def plain_torch() -> Iterator[None]:
    """Torch without the modes that observe or emulate: what happens here is no part of the step."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def _save_tensor(
    tensor: torch.Tensor, storages: dict[int, SavedStorage | None], memory: Memory
) -> Iterator[Restore]:
    yield saved_dict(attributes(tensor))
    if is_traceable_wrapper_subclass(tensor):
        return  # the tensors that it is made of are saved by themselves
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        yield saved_sparse(tensor)
        return
    # The storage first: a tensor that is put back may look into memory that must be resized for it.
    is_new = storage._cdata not in storages and storage.device.type != "meta"
    if is_new and not wraps_others(tensor):
        is_held = memory.holds_values(storage)
        found = SavedStorage(storage, is_ours=memory.is_ours(storage)) if is_held else None
        storages[storage._cdata] = found
        if found is not None:
            yield found.restore_size
    yield SavedTensor(tensor).restore


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether there is memory for its elements: none in a storage that is freed, or behind what wraps others."""
    with torch._C.DisableTorchFunction():
        if tensor.layout != torch.strided or tensor.is_nested:
            return True
        if not tensor.numel() or tensor.is_meta:
            return True
        return not wraps_others(tensor) and tensor.untyped_storage().nbytes() > 0


def wraps_others(tensor: torch.Tensor) -> bool:
    """A subclass without memory that does not say what it wraps: it is its attributes."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return False  # asking for its address would part memory that is shared until it is written
    if type(tensor).__name__ == "FakeTensor":
        return False  # torch warns of who asks for its address
    try:
        tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return True
    return False


def _save_object(value: object) -> Iterator[Restore]:
    if isinstance(value, CellType):
        yield saved_cell(value)
    elif isinstance(value, ContextVar):
        yield saved_context(value)
    elif isinstance(value, Context):
        yield saved_variables(value)
    elif isinstance(value, type):
        if is_user_class(value):
            yield saved_class(value)
    elif isinstance(value, FunctionType):
        yield saved_defaults(value)
        yield saved_dict(vars(value))
        yield from (saved_names(namespace, names) for namespace, names in global_names(value))
    elif _is_generator(value):
        yield saved_random(value)
    elif is_array(value):
        yield saved_array(value)
    elif not isinstance(value, bytearray) and is_memory(value):
        yield saved_memory(value)
    elif isinstance(value, Enum):
        yield saved_dict(attributes(value))
    elif isinstance(value, STREAMS):
        yield saved_stream(value)
        yield saved_dict(attributes(value))
    else:
        yield from _save_contents(value)
        if type(value) in BUILTIN_CONTAINERS:
            return
        if isinstance(value, (dict, list, deque, set)) or has_walkable_state(value):
            yield saved_dict(attributes(value))
            if any(True for _ in slot_descriptors(type(value))):
                yield saved_slots(value)
        elif is_of_library(value):
            own = attributes(value)
            yield saved_names(
                own, tuple(name for name in own if issubclass(type(own[name]), SCALARS))
            )


def _save_contents(value: object) -> Iterator[Restore]:
    if isinstance(value, dict):
        yield saved_dict(value)
    elif isinstance(value, list):
        yield saved_list(value)
    elif isinstance(value, deque):
        yield saved_deque(value)
    elif isinstance(value, set):
        yield saved_set(value)
    elif isinstance(value, bytearray):
        yield saved_bytes(value)


def _is_generator(value: object) -> bool:
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy")
    kinds = (numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()
    return isinstance(value, kinds)
