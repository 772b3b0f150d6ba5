"""Memory and numbers that graphs captured -> the line that last put others in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import ref

import torch

from graphdoctor.device.observe.storages import StorageTable, is_plain
from graphdoctor.measure.audit.places import Key, Place, Step, follow
from graphdoctor.measure.watch.profiler import replaced
from graphdoctor.target.frames import locate
from graphdoctor.values.locations import Location

_data: Any = torch._C.TensorBase.data
# step() itself warns, and names the line that calls it.
_SCHEDULES = (
    (torch.optim.lr_scheduler.LRScheduler, "_update_lr"),
    (torch.optim.lr_scheduler.ReduceLROnPlateau, "_reduce_lr"),
)


class ChangedMemory:
    """Sees assignments to attributes of modules and to `.data`, conversions such as `.to()`, and schedulers.

    `changes` counts what was seen of captured memory, resized storages too.
    """

    def __init__(self, table: StorageTable) -> None:
        self._table = table
        self.captured: set[int] = set()  # by number
        self.changes = 0
        self.lines: dict[int, Location | None] = {}
        self.lines_of_places: dict[Key, Location | None] = {}
        self._attributes: dict[tuple[int, Step], Place] = {}
        self._options: dict[int, list[Place]] = {}  # by the identity of an optimizer

    def watch(self, places: Iterable[Place]) -> None:
        """Look at what changes the values in these places."""
        for each in places:
            if isinstance(each.root, ref) and isinstance(each.root(), torch.optim.Optimizer):
                self._options.setdefault(id(each.root()), []).append(each)
            elif isinstance(each.root, ref):
                *way, name = each.path
                self._attributes[id(follow(each.root(), tuple(way))), name] = each

    @contextmanager
    def on(self) -> Iterator[None]:
        """Look at these calls while the block runs."""
        module = torch.nn.Module
        ours = {
            "__setattr__": self._assigns(module.__setattr__),
            "_apply": self._converts(module._apply),
        }
        data: Any = property(_data.__get__, self._set_data)
        with ExitStack() as replacing:
            replacing.enter_context(replaced(module, ours))
            replacing.enter_context(replaced(torch.Tensor, {"data": data}))
            resizes = {"resize_": self._resizes(torch.UntypedStorage.resize_)}
            replacing.enter_context(replaced(torch.UntypedStorage, resizes))
            for scheduler, name in _SCHEDULES:
                method = vars(scheduler).get(name)
                if method is not None:
                    replacing.enter_context(replaced(scheduler, {name: self._schedules(method)}))
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
            if self._attributes and (place := self._attributes.get((id(module), name))):
                self.lines_of_places[place.key] = locate().location

        return __setattr__

    def _schedules(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def update(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            places = self._options.get(id(getattr(scheduler, "optimizer", None)), ())
            before = [each.read([]) for each in places]
            result = method(scheduler, *args, **kwargs)
            for each, value in zip(places, before, strict=True):
                if each.read([]) is not value:
                    self.lines_of_places[each.key] = locate().location
            return result

        return update

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
            self.changes += 1
            self.lines[number] = locate().location

    def _resizes(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def resize_(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            info = self._table.info_of(storage)
            self.changes += info is not None and info.number in self.captured
            return method(storage, *args, **kwargs)

        return resize_
