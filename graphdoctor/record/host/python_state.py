"""Python state that a step changes: what changed, and at which lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch

from graphdoctor.device.observe.storages import StorageTable
from graphdoctor.record.host.observer import Seen
from graphdoctor.target.state.globals import process_values
from graphdoctor.target.state.snapshot import Reader, named_state, readers_of
from graphdoctor.values.host_events import PythonStateChanged
from graphdoctor.values.recording import Iteration, StateChange

_LOOKS = 1000  # values that are looked at after each line of the step, in all


def storages_of(named: Mapping[str, torch.Tensor], table: StorageTable) -> dict[str, int]:
    """The number of the storage behind each tensor, by path."""
    return {path: table.info(tensor).number for path, tensor in named.items()}


class HostState:
    """Numbers, lengths and the identity of tensors at one moment."""

    def __init__(self, roots: Mapping[str, object], table: StorageTable) -> None:
        named, values = named_state(roots)
        self.values = {path: repr(value) for path, value in values.items()} | process_values()
        self.storages = storages_of(named, table)
        # Gradients are made anew in most steps, and that is no hazard: the step itself makes them.
        self.tensors = {
            path: number for path, number in self.storages.items() if not path.endswith(".grad")
        }

    def changes(self, after: HostState) -> tuple[StateChange, ...]:
        """What differs, by path."""
        found = []
        for path, value in self.values.items():
            now = after.values.get(path, "absent")
            if now != value:
                kind: Literal["grown", "value"] = "grown" if path.startswith("len(") else "value"
                found.append(StateChange(path=path, before=value, after=now, kind=kind))
        for path, number in self.tensors.items():
            now_number = after.tensors.get(path)
            if now_number is not None and now_number != number:
                found.append(
                    StateChange(
                        path=path,
                        before=f"storage {number}",
                        after=f"storage {now_number}",
                        kind="rebound-tensor",
                    )
                )
        return tuple(found)


def lasting_changes(captured: Sequence[Iteration]) -> dict[str, list[StateChange]]:
    """What still changes after the first recorded iteration: all else is done once, as a cache is filled."""
    found: dict[str, list[StateChange]] = {}
    for iteration in captured[1:] or captured:
        for change in iteration.changes:
            if change.kind != "rebound-tensor":
                found.setdefault(change.path, []).append(change)
    return found


def state_watches(
    roots: Mapping[str, object], changes: Mapping[str, Sequence[StateChange]]
) -> list[StateWatch]:
    """One for each value.

    What costs too much to look at is not looked at by line: a table of counts has thousands of values.
    """
    left = _LOOKS
    watches = []
    for reader in readers_of(roots, changes):
        is_by_line = reader.cost <= left
        left -= reader.cost if is_by_line else 0
        watches.append(StateWatch(reader, is_by_line=is_by_line))
    return watches


class StateWatch:
    """One value: the lines at which it changes."""

    def __init__(self, reader: Reader, *, is_by_line: bool) -> None:
        self.path = str(reader.path)  # as the recorded changes name it
        self.name = str(reader.path.inner)
        self.is_by_line = is_by_line
        self.is_from_outside = False
        self._read = reader.again
        self._seen = reader.now

    def after_line(self, *, is_users: bool) -> Iterator[Seen]:
        before, now = self._seen, self._read()
        self._seen = now
        if before != now:
            # What a program does around its step is no change of the step's.
            self.is_from_outside = self.is_from_outside or not is_users
            yield Seen(PythonStateChanged, self.name)
