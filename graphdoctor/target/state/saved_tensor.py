"""Save a tensor, or its memory, and restore it in place, bit for bit; a small digest of memory."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

# Two tensors can share memory until one of them is written: torch then copies it for the writer. torch's own
# lazy clone works so, which is no public name. Whoever asks a tensor for its address may write there, and gets
# separate memory at once; whoever has the address from before could write unseen.
# torch's own, without a word in its stubs.
is_shared: Callable[[torch.Tensor], bool] = vars(torch._C)["_is_cow_tensor"]
# Where the storage of a tensor begins; asking for a pointer would make torch copy what is shared.
begin_of: Callable[[torch.Tensor], int] = vars(torch._C)["_data_address"]

# The same in C, which ends the sharing; what stands in for it on the emulated device notes that somebody asked.
own_begin_of: Callable[[torch.UntypedStorage], int] = vars(torch._C)["StorageBase"].data_ptr


def lies_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether it truly does, also where a device is emulated that it seems to lie on."""
    found: bool = torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.CPU)
    return found


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor begins, to be told from others: nobody may write there."""
    return begin_of(tensor) + int(tensor.storage_offset()) * tensor.element_size()


def version_of(tensor: torch.Tensor) -> int | None:
    """Counts the writes to a tensor; tensors of inference mode have no such count."""
    return None if tensor.is_inference() else tensor._version


def copied_when_written(tensor: torch.Tensor) -> torch.Tensor:
    """The same values whoever writes there later.

    Not for memory of the user's, which would lie elsewhere afterwards. A GPU's memory, and what torch did
    not allocate, is copied now.
    """
    if lies_on_cpu(tensor):
        with suppress(RuntimeError):
            return torch._lazy_clone(tensor)
    return tensor.clone()


def give_own_memory(tensor: torch.Tensor) -> None:
    """End the sharing before a tensor is resized: torch fails inside, or crashes, where memory is shared then."""
    if lies_on_cpu(tensor) and tensor.layout is torch.strided and is_shared(tensor):
        tensor.data_ptr()  # who asks for the address may write there


# `register_hook`, `register_post_accumulate_grad_hook`
HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")


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


@dataclass(frozen=True, eq=False)
class _Copy:
    """The bytes that a storage had at some moment, numbered. Nobody writes into them."""

    number: int
    storage: torch.UntypedStorage  # held, so that no other can come to lie at its address
    contents: torch.Tensor
    is_shared: bool  # with the storage, until somebody writes there

    def __del__(self) -> None:
        """Memory that nobody shares any more is the storage's own again, where it is."""
        object.__delattr__(self, "contents")
        if self.is_shared:
            own_begin_of(self.storage)


_LAST_COPIES: WeakValueDictionary[int, _Copy] = WeakValueDictionary()  # by the storage's address
_NUMBERS = count(1)
_FEW_BYTES = 2**14
_SMALL_BYTES = 2**20  # beyond, a copy by itself moves bytes faster than one of many


def _copy_of(storage: torch.UntypedStorage, *, is_ours: bool) -> _Copy:
    """A copy of what a storage holds now; the last one, where some snapshot has it and it is still equal.

    Few bytes on a GPU are copied again: to compare them, the host would have to wait.
    """
    now = _bytes_of(storage)
    last = None if is_cheap_to_copy(now) else _LAST_COPIES.get(storage._cdata)
    if last is not None and _is_same(now, last.contents):
        return last
    contents = copied_when_written(now) if is_ours else now.clone()
    copy = _LAST_COPIES[storage._cdata] = _Copy(next(_NUMBERS), storage, contents, is_ours)
    return copy


def is_cheap_to_copy(tensor: torch.Tensor) -> bool:
    """Whether a copy on the device takes less than the answer whether one is needed."""
    if lies_on_cpu(tensor) or tensor.layout != torch.strided:
        return False  # a sparse tensor has no size in bytes
    return tensor.nbytes <= _FEW_BYTES


def copy_with_bits_of(flat: torch.Tensor) -> tuple[int, int] | None:
    """The last copy of a tensor's memory, by its number and where in it, if it still has the same bits.

    `flat` is contiguous. One pass over both, and exact: what weights are told by that nothing changes.
    """
    copy = _LAST_COPIES.get(flat.untyped_storage()._cdata)
    begin = int(flat.storage_offset()) * flat.element_size()
    if copy is None or begin % 8 or not flat.numel():
        return None
    then = copy.contents[begin : begin + flat.nbytes]
    return (copy.number, begin) if _is_same(flat.view(torch.uint8), then) else None


def contents_now(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """What a storage holds, which nobody may write into: the last copy if it is still equal, else a new one."""
    now, last = _bytes_of(storage), _LAST_COPIES.get(storage._cdata)
    if last is not None and _is_same(now, last.contents):
        return last.contents.untyped_storage()
    copy: torch.UntypedStorage = storage.clone()
    return copy


def is_same_memory(one: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    """Whether two storages hold the same bytes."""
    return _is_same(_bytes_of(one), _bytes_of(other))


class SavedStorage:
    """The bytes of one storage, copied once for all the tensors that share it.

    Snapshots share the copy of what did not change between them: weights in inference exist once
    beside the model, however many moments are remembered. What `is_ours` is copied where somebody writes
    into it: weights that nothing changes exist once, and need not be compared.
    """

    def __init__(self, storage: torch.UntypedStorage, *, is_ours: bool = False) -> None:
        self._storage = storage
        self._nbytes = storage.nbytes()
        # Through a tensor of our own: the user's tensors keep their version counters.
        self._bytes = _bytes_of(storage)
        self._copy = _copy_of(storage, is_ours=is_ours) if self._nbytes else None

    def restore_size(self) -> None:
        """`restore_contents` puts back what it holds."""
        if self._storage.nbytes() != self._nbytes:
            self._storage.resize_(self._nbytes)

    @property
    def contents(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Its bytes and those to put there."""
        return None if self._copy is None else (self._bytes, self._copy.contents)


@dataclass
class Saving:
    """One snapshot while it is made: each storage is copied once, and some things are restored last."""

    memory: Memory
    storages: dict[int, SavedStorage | None] = field(default_factory=dict)  # None: not held
    last: list[Callable[[], object]] = field(default_factory=list)


def restore_contents(storages: Iterable[SavedStorage]) -> None:
    """Put the bytes of all storages back; of the many small ones with few launches."""
    small: dict[torch.device, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for into, saved in filter(None, (storage.contents for storage in storages)):
        if lies_on_cpu(into):
            if not _is_same(into, saved):  # what is shared until it is written to stays so
                into.copy_(saved)
        elif into.numel() > _SMALL_BYTES:
            into.copy_(saved)
        else:
            pair = small.setdefault(into.device, ([], []))
            pair[0].append(into)
            pair[1].append(saved)
    for pair in small.values():
        torch._foreach_copy_(*pair)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether bytes are equal: in one place, or compared eight at a time; few on the CPU without any operator."""
    if one.numel() != other.numel():
        return False
    begins = address_of(one), address_of(other)
    if begins[0] == begins[1]:
        return True
    if one.numel() <= _FEW_BYTES and lies_on_cpu(one) and lies_on_cpu(other):
        held, then = (ctypes.string_at(begin, one.numel()) for begin in begins)
        return held == then
    whole = one.numel() // 8 * 8
    words = (part[:whole].view(torch.int64) for part in (one, other))
    return torch.equal(*words) and torch.equal(one[whole:], other[whole:])


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class SavedTensor:
    """What makes a tensor object: the memory it looks at, and its place in autograd."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._alias = tensor.detach()
        self._storage = self._alias.untyped_storage()
        self._is_leaf = tensor.is_leaf
        self._requires_grad = tensor.requires_grad
        self._hooks = {name: getattr(tensor, name) for name in HOOKS_OF_TENSORS}
        self._version = version_of(tensor)

    def restore(self) -> None:
        tensor = self._tensor
        if self._is_leaf and not tensor.is_leaf:
            _cut_from_graph(tensor, self._alias)
        if not _same_layout(tensor, self._alias):
            tensor.data = self._alias
        if tensor.is_leaf and tensor.requires_grad != self._requires_grad:
            tensor.requires_grad_(self._requires_grad)
        for name, hooks in self._hooks.items():
            if (now := getattr(tensor, name)) is not hooks:
                if hooks is None:
                    now.clear()  # autograd may keep the dictionary, and call what it finds there
                setattr(tensor, name, hooks)
        # A graph that was alive before the step must still accept its saved tensors afterwards.
        if self._version is not None and tensor._version != self._version:
            setter: Any = torch._C._autograd._unsafe_set_version_counter
            if _SETS_SEVERAL:
                setter((tensor,), (self._version,))
            else:
                setter(tensor, self._version)


def _sets_several() -> bool:
    """Whether versions are set for several tensors at once; up to torch 2.6 for one.

    Asked with a tensor that can be printed: what refuses it prints it into its error, and the memory of
    one that is restored may have been given back.
    """
    setter: Any = torch._C._autograd._unsafe_set_version_counter
    try:
        setter((torch.empty(0),), (0,))
    except TypeError:
        return False
    return True


_SETS_SEVERAL = _sets_several()


def _cut_from_graph(tensor: torch.Tensor, alias: torch.Tensor) -> None:
    """Make a tensor a leaf again that was written to by an operator with a gradient."""
    if tensor._base is None:
        tensor.detach_()
        return
    # A view cannot be detached in place; it becomes a plain tensor on the same memory. Where torch
    # refuses that, because something else holds the view, its values are right all the same.
    with suppress(RuntimeError):
        torch.utils.swap_tensors(tensor, alias.detach())


def _same_layout(tensor: torch.Tensor, alias: torch.Tensor) -> bool:
    return (
        tensor.untyped_storage()._cdata == alias.untyped_storage()._cdata
        and tensor.dtype == alias.dtype
        and tensor.size() == alias.size()
        and tensor.stride() == alias.stride()
        and tensor.storage_offset() == alias.storage_offset()
    )


def saved_sparse(tensor: torch.Tensor) -> Callable[[], None]:
    """A tensor without a storage of its own: sparse ones are put back in the memory of their parts.

    A graph that reads a sparse tensor reads values and indices at their addresses: new ones in their
    place would leave it with memory that was given back.
    """

    parts = parts_of_sparse(tensor.detach())
    alias = tensor.detach() if parts else tensor.detach().clone()
    memory = [SavedStorage(part.untyped_storage()) for part in parts]

    def restore() -> None:
        if not memory:
            tensor.data = alias.clone()
            return
        for part in memory:
            part.restore_size()
        restore_contents(memory)
        if not _same_parts(tensor, alias):
            tensor.data = alias

    return restore


PARTS_OF_SPARSE: Mapping[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_values", "_indices"),
    torch.sparse_csr: ("values", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("values", "crow_indices", "col_indices"),
    torch.sparse_csc: ("values", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("values", "ccol_indices", "row_indices"),
}


def parts_of_sparse(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The plain tensors that a sparse tensor is made of, its values first; none of any other."""
    return tuple(getattr(tensor, name)() for name in PARTS_OF_SPARSE.get(tensor.layout, ()))


def _same_parts(tensor: torch.Tensor, alias: torch.Tensor) -> bool:
    pairs = zip(*(parts_of_sparse(each.detach()) for each in (tensor, alias)), strict=True)
    if tensor.layout is torch.sparse_coo and tensor.is_coalesced() != alias.is_coalesced():
        return False
    return tensor.size() == alias.size() and all(_same_layout(*pair) for pair in pairs)


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


Contents = tuple[str | int, ...]


def contents_of(flat: torch.Tensor) -> Contents:
    """A key for the content of a contiguous tensor of one dimension on the CPU; its first word says how it was found.

    Memory that still has the bits of a snapshot's copy is named by that. All else is summed up twice, read at its
    address: NumPy would make torch copy what is shared.
    """
    if (of_copy := copy_with_bits_of(flat)) is not None:
        return ("copy", *of_copy)
    held = (ctypes.c_char * flat.nbytes).from_address(address_of(flat))
    return ("sums", zlib.crc32(held), zlib.adler32(held))
