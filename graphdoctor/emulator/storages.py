"""Storages -> their number, the logical device they lie on, who made them."""

from __future__ import annotations

from typing import cast

import torch


class StorageInfo:
    """What is known of one storage for as long as it lives."""

    __slots__ = ("cuda", "maker", "number", "pinned", "weak")

    def __init__(self, weak: int, number: int) -> None:
        self.weak: int | None = weak
        self.number = number
        self.cuda = False
        self.pinned = False
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

    def info(self, tensor: torch.Tensor) -> StorageInfo:
        """The entry of a tensor's storage, made (on the CPU) if it is not known."""
        storage = _storage_of(tensor)
        found = self._infos.get(storage._cdata)
        return found if found is not None else self._add(storage)

    def is_cuda(self, tensor: torch.Tensor) -> bool:
        found = self._infos.get(_storage_of(tensor)._cdata)
        return found is not None and found.cuda

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        found = self._infos.get(_storage_of(tensor)._cdata)
        return found is not None and found.pinned

    def put_on_cuda(self, tensor: torch.Tensor) -> None:
        self.info(tensor).cuda = True

    def _add(self, storage: torch.UntypedStorage) -> StorageInfo:
        if len(self._infos) >= self._sweep_at:
            self._sweep()
        info = StorageInfo(cast(int, storage._weak_ref()), self._next_number)
        self._next_number += 1
        self._infos[storage._cdata] = info
        return info

    def _sweep(self) -> None:
        expired = torch.UntypedStorage._expired
        dead = [key for key, info in self._infos.items() if info.weak and expired(info.weak)]
        for key in dead:
            self._infos.pop(key).let_go()
        self._sweep_at = max(4096, 2 * len(self._infos))

    def close(self) -> None:
        """Give all weak references back."""
        for info in self._infos.values():
            info.let_go()
        self._infos.clear()


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """A tensor's storage, looking through functorch's wrappers; a sparse one's is its values'."""
    with torch._C.DisableTorchFunction():  # this call is ours: the function mode need not see it
        try:
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return _inner_tensor(tensor).untyped_storage()


def _inner_tensor(tensor: torch.Tensor) -> torch.Tensor:
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    if tensor.layout == torch.strided:
        return tensor
    if tensor.layout == torch.sparse_coo:
        return tensor._values()
    return tensor.values()
