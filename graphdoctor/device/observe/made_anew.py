"""Results that each replay of a tape makes anew, and the arguments that come from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.device.observe.storages import Geometry, StorageInfo


@dataclass(frozen=True, slots=True)
class Made:
    """A result that each replay makes anew, in memory of its own: where it lay in the run of the tape.

    A graph's pool uses the memory of what nobody holds again; a tape that held it would hold every
    intermediate value of a step. What is on the CPU in eager and on the device in a capture, as attention's
    random seed and offset, can have no memory at all.
    """

    entry: int
    position: int | None
    info: StorageInfo
    geometry: Geometry
    is_on_device: bool

    @property
    def key(self) -> tuple[int, int | None]:
        return self.entry, self.position

    def of(self, result: Any) -> torch.Tensor:
        """It in what the entry gave in a replay, laid out as it was then."""
        tensor: torch.Tensor = result if self.position is None else result[self.position]
        shape, stride = self.geometry.shape, self.geometry.stride
        if tuple(tensor.shape) != shape:
            raise RuntimeError(
                f"a result has the shape {tuple(tensor.shape)}, and had {shape} in the capture"
            )
        if tensor.stride() == stride:
            return tensor
        return tensor.new_empty_strided(shape, stride).copy_(tensor)


Results = dict[tuple[int, int | None], torch.Tensor]  # of a replay, by entry and position


@dataclass(frozen=True, slots=True)
class FromEntry:
    """An argument that an earlier entry makes anew in each replay, or a part of it."""

    made: Made
    geometry: Geometry

    def of(self, results: Results) -> torch.Tensor:
        """The argument among a replay's results."""
        tensor, then = results[self.made.key], self.made.geometry
        if self.geometry == then:
            return tensor
        moved = int(tensor.storage_offset()) - then.offset
        return self.geometry.of(tensor.untyped_storage(), moved=moved)


def each_source(value: Any, make: Callable[[FromEntry], Any]) -> Any:
    """The same argument, with what comes from other entries replaced."""
    if isinstance(value, FromEntry):
        return make(value)
    if isinstance(value, (list, tuple)) and any(True for _ in sources(value)):
        return type(value)(each_source(item, make) for item in value)
    return value


def sources(value: Any) -> Iterator[FromEntry]:
    if isinstance(value, FromEntry):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from sources(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from sources(item)
