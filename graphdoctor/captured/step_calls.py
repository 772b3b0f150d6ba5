"""The last calls of a step that trains nothing: what each got, and the tensors that the first of them found.

A step that decodes writes into a cache of fixed length, whose end may be near when it is studied. So a study runs the
calls that the program has just made: none of them writes further than the program has come.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import ref

import torch

from graphdoctor.graphs.calls.signature import parts_of_argument
from graphdoctor.target import Inputs
from graphdoctor.target.state.clone import clone_inputs, copy_values, memory_of, tensor_leaves
from graphdoctor.target.state.saved_tensor import version_of
from graphdoctor.target.state.snapshot import named_tensors

_CALLS = 2  # before the one that is studied, so that replays follow each other
_MOST_KINDS = 2  # each has a copy of all caches


class WrittenArguments:
    """The arguments that a step writes into, such as a list of keys and values: they are state, and no inputs.

    They are known by a tensor that is given in two calls, one after the other, and written to. A tensor that was
    made in inference mode counts no writes, so a container that has such a tensor is state.
    """

    def __init__(self) -> None:
        self.places: frozenset[int | str] = frozenset()
        self._last: dict[int | str, list[ref[torch.Tensor]]] = {}

    @contextmanager
    def observed(self, inputs: Inputs) -> Iterator[None]:
        """Observe an eager call."""
        given = {place: each for place, each in _by_place(inputs).items() if _can_be_input(each)}
        tensors = {place: list(tensor_leaves(Inputs((each,)))) for place, each in given.items()}
        before = {place: list(map(version_of, each)) for place, each in tensors.items()}
        yield
        for place, found in tensors.items():
            last = [each() for each in self._last.get(place, ())]
            kept = [t for t in found if any(t is each for each in last)]
            is_container = not isinstance(given[place], torch.Tensor)
            is_written = list(map(version_of, found)) != before[place]
            if kept and (is_written or (is_container and any(t.is_inference() for t in kept))):
                self.places |= {place}
        self._last = {place: list(map(ref, found)) for place, found in tensors.items()}

    def forget(self) -> None:
        """The step trains, and gets batches."""
        self.places = frozenset()

    def among(self, inputs: Inputs) -> dict[str, object]:
        """The arguments of a call that are state, by name."""
        given = _by_place(inputs)
        return {f"argument {place}": given[place] for place in self.places & given.keys()}


def _by_place(inputs: Inputs) -> dict[int | str, object]:
    found: dict[int | str, object] = dict(enumerate(inputs.args))
    for name, argument in inputs.kwargs.items():
        found[name] = argument
    return found


def _can_be_input(argument: object) -> bool:
    return isinstance(argument, torch.Tensor) or parts_of_argument(argument) is not None


@dataclass
class LastCalls:
    """Calls of one kind, in order, and what tensors other than parameters had before the first."""

    before: list[tuple[torch.Tensor, torch.Tensor]]
    inputs: list[Inputs] = field(default_factory=list)

    def rewind(self) -> None:
        """Give the tensors the values that they had before the first call."""
        with torch.inference_mode():  # tensors that were made in it take no other write
            for tensor, values in self.before:
                copy_values(tensor, values)


class CallsOfKinds:
    """The last calls of each kind that has no graph yet."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, LastCalls] = {}

    def are_enough(self, kind: Hashable) -> bool:
        return kind in self._kinds and len(self._kinds[kind].inputs) >= _CALLS

    def add(self, kind: Hashable, inputs: Inputs, roots: Mapping[str, object]) -> None:
        """Note a call that is about to run."""
        state = list(named_tensors(roots).values())
        with torch.inference_mode(False), torch.no_grad():
            if kind not in self._kinds:
                if len(self._kinds) == _MOST_KINDS:
                    del self._kinds[next(iter(self._kinds))]
                self._kinds[kind] = LastCalls([(t, t.clone()) for t in state if _is_plain(t)])
            own = clone_inputs(inputs, kept=memory_of(state))
        self._kinds[kind].inputs.append(own)

    def forget(self) -> None:
        """Give the copies back."""
        self._kinds.clear()

    def take(self, kind: Hashable) -> LastCalls | None:
        """The calls of a kind, which are forgotten; None for none."""
        return self._kinds.pop(kind, None)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is no parameter, which such a step does not write to, and has values in memory of its own."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and tensor.untyped_storage().nbytes() > 0
    )
