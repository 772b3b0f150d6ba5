"""The tensors that a step keeps in attributes, as `self.loss = ...` does: another object in each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import ref

import torch

from graphdoctor.target.state.attributes import attributes, is_stateful
from graphdoctor.target.state.walk import Walk


@dataclass(frozen=True, slots=True)
class Place:
    """An attribute, and the tensor that it holds while the step is studied, guarded and replayed."""

    holder: dict[str, object]
    name: str
    standing: torch.Tensor

    def load(self) -> str:
        """Copy the attribute's tensor into the standing one; returns why it does not fit, or ""."""
        now, standing = self.holder.get(self.name), self.standing
        if now is standing:
            return ""
        if (
            not isinstance(now, torch.Tensor)
            or (now.shape, now.dtype, now.device)
            != (standing.shape, standing.dtype, standing.device)
            or now.requires_grad
        ):
            return f"the tensor in the attribute {self.name} is not like the captured one"
        standing.copy_(now)
        return ""


class KeptResults:
    """The attributes of modules and other objects into which the step, or the program between two steps, puts
    another tensor each time.

    What the step puts there is a result of the call: after each replay the attribute has a copy, without autograd
    history. What the step finds there and reads is an input.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._roots = roots
        self._places: dict[tuple[int, str], Place] = {}
        self._last: dict[tuple[int, str], ref[torch.Tensor]] = {}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The standing tensors."""
        return [place.standing for place in self._places.values()]

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Observe an eager call, and what changed since the one before."""
        self._look()
        yield
        self._look()

    def _look(self) -> None:
        seen = {}
        for _, value, _ in Walk(self._roots):
            if is_stateful(value) and not isinstance(value, torch.nn.Module):
                continue
            holder = attributes(value)
            for name, tensor in holder.items():
                if type(tensor) is not torch.Tensor or not tensor.is_cuda:
                    continue
                key = (id(holder), name)
                # Weak: otherwise the memory of a call's results would not be there for the next call's.
                seen[key] = ref(tensor)
                before = self._last.get(key)
                if before is not None and before() is not tensor and key not in self._places:
                    with torch.inference_mode(False):  # calls outside it write to the copy, too
                        self._places[key] = Place(holder, name, tensor.detach().clone())
        self._last = seen

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Let the standing tensors be in the attributes."""
        places = self._places.values()
        now = [place.holder.get(place.name) for place in places]
        for place in places:
            place.holder[place.name] = place.standing
        try:
            yield
        finally:
            for place, value in zip(places, now, strict=True):
                place.holder[place.name] = value

    def left(self) -> list[object]:
        """What the step has put into the attributes, None where it has put nothing."""
        found = [(place.holder.get(place.name), place.standing) for place in self._places.values()]
        return [None if value is standing else value for value, standing in found]

    def put(self, left: list[object]) -> None:
        """Put into the attributes what `left` gave, or copies of it."""
        for place, value in zip(self._places.values(), left, strict=True):
            if value is not None:
                place.holder[place.name] = value

    def read_by(self, is_read: Callable[[torch.Tensor], bool]) -> list[Place]:
        """The places of which a graph reads the standing tensor."""
        return [place for place in self._places.values() if is_read(place.standing)]
