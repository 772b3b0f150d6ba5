"""What differs in attributes in each call: tensors, as of `self.loss = ...`, and floats that the program sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import ref

import torch

from graphdoctor.captured.step_optimizers import FilledNumber, float_behind
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


@dataclass(frozen=True, slots=True)
class NumberPlace(Place):
    """An attribute with a float, such as a loss weight, that the program changes between steps."""

    number: FilledNumber

    def load(self) -> str:
        """Fill the tensor with the attribute's float; returns why there is none, or ""."""
        now = self.holder.get(self.name)
        if type(now) is not float:
            return f"the attribute {self.name} is no float, as it was at the capture"
        self.number.fill(now)
        return ""


class KeptResults:
    """The attributes of modules and other objects into which the step, or the program between two steps, puts
    another tensor each time.

    What the step puts there is a result of the call: after each replay the attribute has a copy, without autograd
    history. What the step finds there and reads is an input. So is a float that the program, and not the step, changes.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._roots = roots
        self._places: dict[tuple[int, str], Place] = {}
        self._last: dict[tuple[int, str], ref[torch.Tensor] | float] = {}
        self._fixed: set[tuple[int, str]] = set()  # floats that are not read from tensors
        self._standing: list[object] = []
        self._gives_floats = False

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
        self._look(is_by_step=True)

    def finds_more(self) -> bool:
        """Whether the program has changed an attribute since the last look that graphs read as input from now on."""
        known = len(self._places)
        self._look()
        return len(self._places) > known

    @property
    def has_numbers(self) -> bool:
        return any(isinstance(place, NumberPlace) for place in self._places.values())

    def fix_numbers(self) -> bool:
        """Let the step have all numbers as floats from now on; returns whether there were others."""
        numbers = {key for key, place in self._places.items() if isinstance(place, NumberPlace)}
        self._fixed |= numbers
        self._places = {key: each for key, each in self._places.items() if key not in numbers}
        return bool(numbers)

    def _look(self, *, is_by_step: bool = False) -> None:
        seen: dict[tuple[int, str], ref[torch.Tensor] | float] = {}
        for _, value, _ in Walk(self._roots):
            if is_stateful(value) and not isinstance(value, torch.nn.Module):
                continue
            holder = attributes(value)
            for name, tensor in holder.items():
                if type(tensor) is float:
                    key = (id(holder), name)
                    seen[key] = tensor
                    if repr(self._last.get(key, tensor)) == repr(tensor) or key in self._fixed:
                        continue
                    if is_by_step:
                        self._fixed.add(key)
                    elif key not in self._places:
                        number = FilledNumber(tensor, torch.device("cuda"))
                        self._places[key] = NumberPlace(holder, name, number.tensor, number)
                    continue
                if type(tensor) is not torch.Tensor or not tensor.is_cuda:
                    continue
                key = (id(holder), name)
                # Weak: otherwise the memory of a call's results would not be there for the next call's.
                seen[key] = ref(tensor)
                before = self._last.get(key)
                if isinstance(before, ref) and before() is not tensor and key not in self._places:
                    with torch.inference_mode(False):  # calls outside it write to the copy, too
                        self._places[key] = Place(holder, name, tensor.detach().clone())
        self._last = seen

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Let the standing tensors be in the attributes."""
        places = self._places.values()
        now = [place.holder.get(place.name) for place in places]
        self._standing = [
            float_behind(place.standing)
            if self._gives_floats and isinstance(place, NumberPlace)
            else place.standing
            for place in places
        ]
        for place, standing in zip(places, self._standing, strict=True):
            place.holder[place.name] = standing
        try:
            yield
        finally:
            for place, value in zip(places, now, strict=True):
                place.holder[place.name] = value

    @contextmanager
    def with_floats(self) -> Iterator[None]:
        """Let the step have numbers as floats in this block, as in eager."""
        self._gives_floats = True
        try:
            yield
        finally:
            self._gives_floats = False

    def left(self) -> list[object]:
        """What the step has put into the attributes, None where it has put nothing."""
        found = [place.holder.get(place.name) for place in self._places.values()]
        pairs = zip(found, self._standing, strict=True)
        return [None if value is standing else value for value, standing in pairs]

    def put(self, left: list[object]) -> None:
        """Put into the attributes what `left` gave, or copies of it."""
        for place, value in zip(self._places.values(), left, strict=True):
            if value is not None:
                place.holder[place.name] = value

    def read_by(self, is_read: Callable[[torch.Tensor], bool]) -> list[Place]:
        """The places of which a graph reads the standing tensor."""
        return [place for place in self._places.values() if is_read(place.standing)]
