"""Numbers storages, and records the logical device of each and what allocated it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NamedTuple, cast

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from graphdoctor.target.state.saved_tensor import parts_of_sparse
from graphdoctor.values.recording import Arg, Opaque, Sparse, TensorUse

_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter})
_storage_address: Callable[[torch.Tensor], int] = vars(torch._C)["_storage_address"]
_has_storage: Callable[[torch.Tensor], bool] = torch._C._has_storage


class Values(IntEnum):
    """What a storage's memory holds, where a step runs on shapes only; else always the true values."""

    TRUE = 0
    ASSUMED = 1  # computed from something that was assumed
    NONE = 2  # nothing: the memory is never read or written


class StorageInfo:
    """What is known of one storage for as long as it lives."""

    __slots__ = ("cuda", "is_ours", "maker", "number", "pinned", "values", "weak")

    def __init__(self, weak: int, number: int) -> None:
        self.weak: int | None = weak
        self.number = number
        self.cuda = False
        self.is_ours = False  # the emulated device made it, and nobody knows its address
        self.pinned = False
        self.values = Values.TRUE
        self.maker: object | None = None  # who made it, where an observer saw it made

    def storage(self) -> torch.UntypedStorage | None:
        """The storage itself, if anybody still holds it."""
        if self.weak is None:
            return None
        return torch.UntypedStorage._new_with_weak_ptr(self.weak)

    def let_go(self) -> None:
        """Give the weak reference back; the table does so once the storage is gone."""
        weak, self.weak = self.weak, None
        if weak is not None:
            torch.UntypedStorage._free_weak_ref(weak)


class Geometry(NamedTuple):
    """Which part of a storage a tensor is: the rest of it may hold anything."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of_tensor(tensor: torch.Tensor) -> Geometry:
        return Geometry(
            int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype
        )

    @staticmethod
    def all_of(storage: torch.UntypedStorage) -> Geometry:
        return Geometry(0, (storage.nbytes(),), (1,), torch.uint8)

    def of(self, storage: torch.UntypedStorage, *, moved: int = 0) -> torch.Tensor:
        """The tensor that lies there in another storage of the same layout, `moved` by some elements."""
        device = storage.device
        if device.type == "cpu":
            steps = sum([(n - 1) * step for n, step in zip(self.shape, self.stride, strict=True)])
            reach = (self.offset + moved + steps + 1) * self.dtype.itemsize
            if reach > storage.nbytes() and 0 not in self.shape:
                storage.data_ptr()  # it grows now, as shared memory cannot: see `saved_tensor.give_own_memory`
        empty = torch.empty(0, dtype=self.dtype, device=device)
        return empty.set_(storage, self.offset + moved, self.shape, self.stride)


_DTYPES = {
    value: (str(value).removeprefix("torch."), value.itemsize)
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


def use_of(tensor: torch.Tensor, info: StorageInfo, device: str) -> TensorUse:
    """A tensor as a recording has it; `info` is its storage's, `device` its logical device."""
    dtype, itemsize = _DTYPES[tensor.dtype]
    nested = tensor.is_nested
    if tensor.layout is torch.strided and not nested:
        # By position, without what is the default: there are several for each operator.
        return TensorUse(
            info.number,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            dtype,
            device,
            itemsize,
            info.pinned,
        )
    return TensorUse(
        storage=info.number,
        shape=(tensor.numel(),) if nested else tuple(tensor.shape),
        stride=(),
        offset=0,
        dtype=dtype,
        device=device,
        itemsize=itemsize,
        pinned=info.pinned,
        nested=nested,
        sparse="" if nested else _sparse(tensor),
    )


def arg_of(value: Any, use: Callable[[torch.Tensor], TensorUse]) -> Arg:
    """An argument as a recording has it; `use` says what a tensor in it is."""
    if isinstance(value, torch.Tensor):
        return use(value)
    if type(value) in _PLAIN:
        return value  # type: ignore[no-any-return]
    if isinstance(value, (list, tuple)):
        return tuple([arg_of(item, use) for item in value])
    if isinstance(value, torch.Generator):
        return Opaque("default generator" if is_default(value) else "generator")
    if isinstance(value, torch.UntypedStorage):  # as text it is read byte by byte
        return Opaque(f"storage of {value.nbytes()} bytes")
    return Opaque(str(value))


_PLAIN = (bool, int, float, str, type(None))


def is_default(generator: Any) -> bool:
    """Whether it is a default generator of torch's, which hands operators another wrapper of the same one."""
    defaults: tuple[Any, ...] = (torch.default_generator, *torch.cuda.default_generators)
    return any(generator._cdata == default._cdata for default in defaults)


def _sparse(tensor: torch.Tensor) -> Sparse:
    if tensor.layout == torch.sparse_coo:
        return "coalesced" if tensor.is_coalesced() else "uncoalesced"
    return _COMPRESSED.get(tensor.layout, "")


_COMPRESSED: dict[torch.layout, Sparse] = {
    torch.sparse_csr: "by-rows",
    torch.sparse_bsr: "by-rows",
    torch.sparse_csc: "by-columns",
    torch.sparse_bsc: "by-columns",
}


class StorageTable:
    """All storages seen, by the address of their implementation.

    Each entry holds a weak reference at the C++ level: while it is held, the address cannot be
    used again, so that a storage is never mistaken for a dead one. Dead entries are dropped when
    the table has doubled, which keeps the cost per storage constant.
    """

    def __init__(self) -> None:
        self._infos: dict[int, StorageInfo] = {}
        self._next_number = 0
        self._sweep_at = 4096
        self.unwaited: frozenset[int] = frozenset()  # by number: a collective may still write there
        self.keeps_addresses = True  # somebody may remember where memory lies, as a guard does

    def info(self, tensor: torch.Tensor) -> StorageInfo:
        """The entry of a tensor's storage, made (on the CPU) if it is not known."""
        try:
            plain = type(tensor) in _PLAIN_TYPES  # as nearly all are
            found = self._infos.get(_storage_address(tensor) if plain else _address(tensor))
        except (NotImplementedError, RuntimeError):
            found = self._infos.get(_address(tensor))
        return found if found is not None else self._add(_storage_of(tensor))

    def info_of(self, storage: torch.UntypedStorage) -> StorageInfo | None:
        """The entry of a storage; None if it is not known."""
        return self._infos.get(storage._cdata)

    @property
    def newest(self) -> int:
        """The number of the storage that was seen last."""
        return self._next_number - 1

    def alive(self) -> Iterator[tuple[StorageInfo, torch.UntypedStorage]]:
        """The entries whose storages somebody still holds."""
        for info in list(self._infos.values()):
            storage = info.storage()
            if storage is not None:
                yield info, storage

    def is_cuda(self, tensor: torch.Tensor) -> bool:
        found = self._infos.get(_address(tensor))
        return found is not None and found.cuda

    def lies_on_cuda(self, storage: torch.UntypedStorage) -> bool:
        found = self._infos.get(storage._cdata)
        return found is not None and found.cuda

    def holds_values(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage's memory may be read: false of what has no values."""
        found = self._infos.get(storage._cdata)
        return found is None or found.values is not Values.NONE

    def is_ours(self, storage: torch.UntypedStorage) -> bool:
        """Whether the emulated device made a storage, and nobody knows its address."""
        found = self._infos.get(storage._cdata)
        return found is not None and found.is_ours and not self.keeps_addresses

    def has_true_values(self, tensor: torch.Tensor) -> bool:
        """Whether what a tensor holds is what the step computes."""
        found = self._infos.get(_address(tensor))
        return found is None or found.values is Values.TRUE

    def take_values(self, tensor: torch.Tensor) -> None:
        """Leave a tensor's memory alone from now on: it has no values."""
        for part in parts_of(tensor):
            self.info(part).values = Values.NONE

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        found = self._infos.get(_address(tensor))
        return found is not None and found.pinned

    def put_on_cuda(self, tensor: torch.Tensor) -> None:
        """Declare that a tensor lies on the device: the values and indices of a sparse one."""
        for part in parts_of(tensor):
            self.info(part).cuda = True

    def put_storage_on_cuda(self, storage: torch.UntypedStorage) -> None:
        (self._infos.get(storage._cdata) or self._add(storage)).cuda = True

    def _add(self, storage: torch.UntypedStorage) -> StorageInfo:
        if len(self._infos) >= self._sweep_at:
            expired = torch.UntypedStorage._expired
            dead = [key for key, info in self._infos.items() if info.weak and expired(info.weak)]
            for key in dead:
                self._infos.pop(key).let_go()
            self._sweep_at = max(4096, 2 * len(self._infos))
        info = StorageInfo(cast(int, storage._weak_ref()), self._next_number)
        self._next_number += 1
        self._infos[storage._cdata] = info
        return info

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Afterwards every storage lies where it lay before; one that was not known, on the CPU."""
        before = {
            info.number: (info.cuda, info.pinned, info.values) for info in self._infos.values()
        }
        try:
            yield
        finally:
            for info in self._infos.values():
                info.cuda, info.pinned, info.values = before.get(
                    info.number, (False, False, Values.TRUE)
                )
                info.maker = None

    def close(self) -> None:
        """Give all weak references back."""
        for info in self._infos.values():
            info.let_go()
        self._infos.clear()


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The plain tensors that a tensor is made of: itself, or what a sparse or wrapped one holds."""
    if type(tensor) not in _PLAIN_TYPES and is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return tuple(getattr(tensor, name) for name in names)
    layout = tensor.layout
    if layout == torch.strided or layout == torch.jagged:
        return (tensor,)
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return parts_of_sparse(tensor) or (tensor,)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a storage and a `Geometry` say all of it.

    torch.compile takes the storage from an output that a later call overwrites; asking for it raises.
    """
    if type(tensor) not in _PLAIN_TYPES or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    if not _has_storage(tensor):
        return False
    odd = tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()
    return not odd and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _address(tensor: torch.Tensor) -> int:
    """Where a tensor's storage is implemented; a sparse tensor's is its values'."""
    if type(tensor) not in _PLAIN_TYPES and is_traceable_wrapper_subclass(tensor):
        tensor = parts_of(tensor)[0]
    try:
        return _storage_address(tensor)
    except (NotImplementedError, RuntimeError):
        return _storage_address(_inner_tensor(tensor))


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    with torch._C.DisableTorchFunction():  # this call is ours: the function mode need not see it
        if type(tensor) not in _PLAIN_TYPES and is_traceable_wrapper_subclass(tensor):
            tensor = parts_of(tensor)[0]
        try:
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return _inner_tensor(tensor).untyped_storage()


def _inner_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that has the memory, in functorch's wrappers or a sparse tensor."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return parts_of(tensor)[0]
