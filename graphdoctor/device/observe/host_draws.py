"""What the host drew from the generator of the emulated device, too -> drawn again in a replay, and thrown away.

A GPU's own generator is where it was in eager, whatever the host has drawn meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_map_only

from graphdoctor.device.observe.fallback import run_operator
from graphdoctor.device.observe.operators import Call
from graphdoctor.device.observe.storages import is_default


@dataclass(frozen=True, slots=True)
class StateRead:
    """The generator's state, read for the so-many-th time."""

    number: int


@dataclass(frozen=True, slots=True)
class StateSet:
    """The generator goes back to the state that was read then."""

    number: int


class HostDraws:
    """Draws, and looks at the generator's state, by how many `entries` of a tape came before."""

    def __init__(self, entries: Sized) -> None:
        self._entries = entries
        self._draws: dict[int, list[Call | StateRead | StateSet]] = {}
        self._states_read: list[bytes] = []
        self._states: dict[int, torch.Tensor] = {}  # of the replay that runs

    def add(self, draw: Call | StateRead | StateSet) -> None:
        self._draws.setdefault(len(self._entries), []).append(draw)

    def read_state(self, state: torch.Tensor) -> None:
        """Keep that the generator's state was read: it is another one in each replay."""
        self.add(StateRead(len(self._states_read)))
        self._states_read.append(bytes(state.numpy()))

    def set_state(self, state: torch.Tensor) -> None:
        """Keep that the generator went back to a state that was read since the capture began.

        So a GPU does it too: kernels count their random numbers from where the replay begins
        (measured on NVIDIA H200, torch 2.11.0, 2026-11-22).
        """
        contents = bytes(state.numpy())
        if contents in self._states_read:
            self.add(StateSet(self._states_read.index(contents)))

    def begin(self) -> None:
        """A replay begins."""
        self._states.clear()

    def again(self, place: int) -> None:
        """Do again what came before the entry of this place."""
        for draw in self._draws.get(place, ()):
            if isinstance(draw, StateRead):
                self._states[draw.number] = torch.default_generator.get_state()
            elif isinstance(draw, StateSet):
                torch.default_generator.set_state(self._states[draw.number])
            else:
                # What a draw may write into: the host's own tensors stay as they are.
                given = tree_map_only(torch.Tensor, torch.clone, (draw.args, draw.kwargs))
                run_operator(Call(draw.func, draw.facts, *given))

    def tensors(self) -> Iterator[torch.Tensor]:
        """Those that are drawn into, or by."""
        for draw in (draw for draws in self._draws.values() for draw in draws):
            if isinstance(draw, Call):
                yield from draw.inputs


def draws_by_default(call: Call) -> bool:
    """Whether a call draws from the default generator."""
    generator = call.kwargs.get("generator")
    return call.facts.is_random and (generator is None or is_default(generator))
