"""What an input or output of a step holds, and how another like it is made around other parts."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from graphdoctor.target.state.attributes import attributes

Parts = list[tuple[str, object]]


@dataclass(slots=True)
class Node:
    """A container or an object: its `content`, with steps of a path, and its `own` attributes.

    `make` gives another, past constructor and methods, so that it shares nothing that will be changed and no
    code of the user's runs. `put` fills it; without `put` it is immutable, and made of its content. `steps`
    names the attributes that always count among the `parts`; None stands for all of them.
    """

    value: object
    content: Parts
    make: Callable[[Sequence[object]], object]
    put: Callable[[Any, list[object]], object] | None = None
    own: Mapping[str, object] = field(default_factory=dict)
    steps: Mapping[str, str] | None = field(default_factory=dict)
    parts: Parts = field(init=False)

    def __post_init__(self) -> None:
        self.parts = [*self.content, *self.own.items()]

    @property
    def is_container(self) -> bool:
        """Another is made whether or not what it holds is another."""
        return self.steps is not None

    def choose(self, holding: Container[int]) -> None:
        """Settle its parts: attributes that hold no tensor are copied along, unless they count."""
        self.parts = list(self.content)
        items = {id(part) for _, part in self.content}  # some can also be read as attributes
        for name, part in self.own.items():
            is_counted = self.steps is None or isinstance(part, torch.Tensor) or id(part) in holding
            step = (self.steps or {}).get(name, f".{name}" if is_counted else None)
            if step is not None and id(part) not in items:
                self.parts.append((step, part))

    def another(self, other: Mapping[int, object]) -> object:
        """One like it, for which `other` has what its content is now."""
        return self.make(() if self.put else [other[id(part)] for _, part in self.content])

    def fill(self, made: Any, other: Mapping[int, object]) -> None:
        """Put the content and the attributes in, each as it is now."""
        if self.put is not None and self.content:
            self.put(made, [other[id(part)] for _, part in self.content])
        if self.own:
            held, in_dict = attributes(made), attributes(self.value)
            for name, part in self.own.items():
                new = other.get(id(part), part)
                if name in in_dict:
                    held[name] = new
                else:
                    object.__setattr__(made, name, new)


def key_step(key: object) -> str:
    """How a key reads in a path of an input: ".mask", but "[0]"."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
