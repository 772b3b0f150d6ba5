"""State of the host that iterations change -> what changed, the lines that change it, and those that decide by it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import FrameType
from typing import NamedTuple

from graphdoctor.device.observe.storages import StorageTable
from graphdoctor.record.host.decisions import Counter, decisions_at
from graphdoctor.record.host.lines import Line, Seen
from graphdoctor.record.host.shown import Shown
from graphdoctor.target.state.globals import process_values
from graphdoctor.target.state.readers import Reader, readers_of
from graphdoctor.target.state.snapshot import named_state
from graphdoctor.values.figures import count_text
from graphdoctor.values.recording import Iteration, StateChange

_LOOKS = 1000  # values that are looked at after each line of the step, in all
_CONTAINERS = (dict, list, tuple, set, frozenset)


class HostState:
    """Numbers, lengths and the identity of tensors at one moment."""

    def __init__(self, roots: Mapping[str, object], table: StorageTable) -> None:
        named, values = named_state(roots)
        self.values = {path: repr(value) for path, value in values.items()} | process_values()
        self.storages = {path: table.info(tensor).number for path, tensor in named.items()}
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
                kind = "grown" if path.startswith("len(") else "value"
                found.append(StateChange(path=path, before=value, after=now, kind=kind))  # type: ignore[arg-type]
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
        found.extend(self._in_other_order(after))
        return tuple(found)

    def _in_other_order(self, after: HostState) -> Iterator[StateChange]:
        """A dictionary that holds the same, of which another comes first now."""
        for mine, others in ((self.values, after.values), (self.storages, after.storages)):
            here, there = list(mine), list(others)
            if mine.keys() != others.keys():
                here = [path for path in here if path in others]
                there = [path for path in there if path in mine]
            moved = ((a, b) for a, b in zip(here, there, strict=True) if a != b)
            for before, now in islice(moved, 1):
                path = f"order({_holder_of(before, now)})"
                yield StateChange(path=path, before=before, after=now, kind="value")


def _holder_of(one: str, other: str) -> str:
    """What leads to both: "model.kept" of "model.kept[0]" and "model.kept[1]"."""
    if "." not in one and "[" not in one:
        return one
    same = one[: next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)]
    return same.rstrip(".[") if same.endswith((".", "[")) else same[: max(map(same.rfind, ".["))]


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
        growth = _growth(changes[str(reader.path)])
        watches.append(StateWatch(reader, growth, is_by_line=is_by_line))
    return watches


class Deciding(NamedTuple):
    """A line that decides by the value at a path, which so many steps later decides otherwise; None: unknown."""

    path: str
    line: Line
    steps: int | None
    growth: int | float | None


class StateWatch:
    """One value: where it changes, and what is decided by it."""

    def __init__(self, reader: Reader, growth: int | float | None, *, is_by_line: bool) -> None:
        self.path = path = str(reader.path)  # as the recorded changes name it
        self.is_by_line = is_by_line
        self.is_from_outside = False
        self.deciding: set[Deciding] = set()
        self._shown = Shown()
        self._read = reader.again
        self._seen = reader.now
        holder = reader.holder
        is_item = isinstance(holder, _CONTAINERS) and not path.endswith(")")
        self._counter = Counter(
            holder=holder,
            name=own_name(path),
            key=_key_of(path) if is_item else None,
            is_length=path.startswith("len("),
            growth=growth,
        )

    def before_line(self, frame: FrameType) -> Iterator[Seen]:
        for found in decisions_at(frame, self._counter, self._seen):
            if self._shown.is_only_shown(frame, found.node):
                continue
            when = ""
            if found.steps is not None:
                later = count_text(found.steps, "step")
                when = f"`{found.code}` becomes {found.becomes} {later} later"
            line = Line(frame.f_code, frame.f_lineno)
            self.deciding.add(Deciding(self.path, line, found.steps, self._counter.growth))
            yield Seen("python-decision", self.path, when)

    def after_line(self, *, is_users: bool) -> Iterator[Seen]:
        before, now = self._seen, self._read()
        self._seen = now
        if before != now:
            # What a program does around its step is no change of the step's.
            self.is_from_outside = self.is_from_outside or not is_users
            yield Seen("python-state", self.path, f"from {before!r} to {now!r}")


def own_name(path: str) -> str:
    """What code calls it: "calls" of "model.calls", "seen" of "len(seen)"."""
    inner = path.rpartition("(")[2].rstrip(")")
    return inner.rpartition(".")[2].partition("[")[0].partition("#")[0]


def _key_of(path: str) -> object:
    """1 of "o[1]", and "n" of the dictionary's value "o.n"."""
    if path.endswith("]"):
        with suppress(ValueError, SyntaxError):
            return ast.literal_eval(path.rpartition("[")[2].removesuffix("]"))
    return path.rpartition(".")[2]


def _growth(changes: Sequence[StateChange]) -> int | float | None:
    """What every step adds, where that is one number."""
    try:
        numbers = [(ast.literal_eval(one.before), ast.literal_eval(one.after)) for one in changes]
        added = {after - before for before, after in numbers}
    except (ValueError, SyntaxError, TypeError):
        return None
    found = added.pop() if len(added) == 1 else None
    return found if isinstance(found, (int, float)) else None
