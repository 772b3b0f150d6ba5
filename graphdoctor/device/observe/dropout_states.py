"""Finds the random state that cuDNN's dropout draws from, which torch passes to an RNN and nothing else shows."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from graphdoctor.device.observe.dispatch import DispatchMode
from graphdoctor.device.observe.operators import RECURRENT, facts_of, written_tensors

# What a graph has to hold: torch drops the state after somebody sets the generator, and replays go on with it.
_LAST: dict[torch.device, torch.Tensor] = {}


def last_dropout_states() -> tuple[torch.Tensor, ...]:
    """The states that were found last, one for each device: a capture that follows reads and writes these."""
    return tuple(_LAST.values())


class DropoutStates(DispatchMode):
    """Finds each dropout state that operators get in this block, and its contents before the first of them."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._found: list[tuple[torch.Tensor, torch.Tensor]] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile works below as it does without: newer torch compiles nothing under other modes."""
        return True

    def rewound(self) -> list[torch.Tensor]:
        """The states, each with the contents that it had when this block first met it."""
        for state, contents in self._found:
            state.copy_(contents)
        return [state for state, _ in self._found]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if types and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # it is made of plain tensors: their operators will come here
        named = kwargs or {}
        if (facts := facts_of(func)).base_name in RECURRENT:
            for state in written_tensors(facts, args, named):
                if not any(state is known for known, _ in self._found):
                    _LAST[state.device] = state
                    self._found.append((state, state.clone()))
        return func(*args, **named)
