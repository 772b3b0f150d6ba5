"""Memory that graphs captured -> the line that last put other memory in its place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphdoctor.device.observe.storages import StorageTable, is_plain
from graphdoctor.measure.watch.profiler import replaced
from graphdoctor.target.frames import locate
from graphdoctor.values.locations import Location

_data: Any = torch._C.TensorBase.data


class ChangedMemory:
    """Sees assignments to parameters and buffers of modules and to `.data`, and conversions such as `.to()`."""

    def __init__(self, table: StorageTable) -> None:
        self._table = table
        self.captured: set[int] = set()  # by number
        self.lines: dict[int, Location | None] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Look at these calls while the block runs."""
        module = torch.nn.Module
        ours = {
            "__setattr__": self._assigns(module.__setattr__),
            "_apply": self._converts(module._apply),
        }
        data: Any = property(_data.__get__, self._set_data)
        with replaced(module, ours), replaced(torch.Tensor, {"data": data}):
            yield

    def _assigns(self, method: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(method)
        def __setattr__(module: torch.nn.Module, name: str, value: Any) -> None:
            before = None
            if self.captured:
                held = module.__dict__
                before = held.get("_parameters", {}).get(name)
                if before is None:
                    before = held.get("_buffers", {}).get(name)
            number = self._number(before)
            method(module, name, value)
            self._note(number, value)

        return __setattr__

    def _converts(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def _apply(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = [
                (entries, name, self._number(tensor))
                for entries in (module._parameters, module._buffers)
                for name, tensor in entries.items()
            ]
            converted = method(module, *args, **kwargs)
            for entries, name, number in before:
                self._note(number, entries.get(name))
            return converted

        return _apply

    def _set_data(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        number = self._number(tensor)
        _data.__set__(tensor, value)
        self._note(number, tensor)

    def _number(self, tensor: Any) -> int | None:
        """Of the captured memory that a tensor has; None of other memory."""
        if not self.captured or not isinstance(tensor, torch.Tensor) or not is_plain(tensor):
            return None
        with torch._C.DisableTorchFunction():
            info = self._table.info_of(tensor.untyped_storage())
        return info.number if info is not None and info.number in self.captured else None

    def _note(self, number: int | None, now: Any) -> None:
        if number is not None and self._number(now) != number:
            self.lines[number] = locate().location
