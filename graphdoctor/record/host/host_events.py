"""Records what a session's host draws, reads, queries and changes in a step."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import compress
from typing import Any, Literal, NamedTuple

import torch

from graphdoctor.device.observe.storages import StorageTable
from graphdoctor.record.host.observer import HostObserver, Seen, Watch
from graphdoctor.record.host.running import Running
from graphdoctor.record.session import Session
from graphdoctor.target.state.globals import numpy_generator, process_values
from graphdoctor.target.state.snapshot import NamedState, Reader, readers_of
from graphdoctor.target.state.walk import Walk
from graphdoctor.values.host_events import PythonEvent, PythonStateChanged, RandomDraw
from graphdoctor.values.recording import Iteration, StateChange


def _generators_among(objects: Sequence[object]) -> list[Any]:
    """NumPy's own generator, and each among these objects; none if NumPy is not imported."""
    if (numpys := numpy_generator()) is None:
        return []
    kinds = {sys.modules["numpy"].random.Generator, type(numpys)}
    # Of hundreds of thousands of objects, in some tens of milliseconds: no line of Python for each.
    found = compress(objects, map(kinds.__contains__, map(type, objects)))
    return list({id(one): one for one in (numpys, *found)}.values())


def _name_draws(names: Set[str]) -> bool:
    """Whether code with these names may call a method of NumPy's generators."""
    if (numpys := numpy_generator()) is None:
        return False
    kinds = (sys.modules["numpy"].random.Generator, type(numpys))
    methods = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
    return not names.isdisjoint(methods - _NAMES_OF_NUMBERS)


# A discount factor is called so more often than a draw from this distribution.
_NAMES_OF_NUMBERS = frozenset({"gamma"})


class GeneratorState:
    """A generator of NumPy's, and where it was when it was last looked at."""

    def __init__(self, generator: Any) -> None:
        is_new = hasattr(generator, "bit_generator")
        self._name = "numpy.random.Generator" if is_new else "numpy.random"
        self._generator = generator
        self._seen = state_of(generator)

    def after_line(self, *, is_users: bool) -> Iterator[Seen]:
        before, self._seen = self._seen, state_of(self._generator)
        if before != self._seen and is_users:
            yield Seen(RandomDraw, self._name)


def state_of(generator: Any) -> Any:
    """The state of a generator of NumPy's, in a form that can be compared."""
    bits = getattr(generator, "bit_generator", None) or generator._bit_generator
    return _plain(bits.state)


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state


class SeenOfHost(NamedTuple):
    """`changing` is the state that each step changes itself: by its path, how code names it."""

    events: tuple[PythonEvent, ...]
    changing: Mapping[str, str]


def seen_of_host(session: Session, captured: Sequence[Iteration]) -> SeenOfHost:
    """What the host drew, read and changed in one iteration, which runs after all that are recorded.

    By then Python has imported what it imports lazily; imports draw random numbers of their own.
    Generators of NumPy's that the state does not hold are searched for only if the code that ran names a draw.
    Lines are watched for draws that no call tells of, as NumPy's, only where a first look found that there are
    some, and for the Python state that was seen to change.
    """
    roots = session.target.roots
    known = _generators_among([value for _, value, _ in Walk(roots)])
    with session.from_the_start(capturing=True), _drawn_from(known) as drawn:
        seen = _watched(session, [])
    if _name_draws(seen.names):
        # A cache or a package that the step calls may hold one, too. Python's garbage collector knows of all
        # but those that were there when somebody froze it.
        held = set(map(id, known))
        others = [one for one in _generators_among(gc.get_objects()) if id(one) not in held]
        if others:
            with session.from_the_start(capturing=True), _drawn_from(others) as more:
                session.call(session.inputs(0))
            drawn += more
    events = tuple(seen.events)
    changed = lasting_changes(captured)
    watches: list[StateWatch] = []
    if drawn or changed:
        with session.from_the_start(capturing=True):
            watches = state_watches(roots, changed)
            by_line = [watch for watch in watches if watch.is_by_line]
            events = tuple(_watched(session, [*map(GeneratorState, drawn), *by_line]).events)
    switches = process_values()
    without_holder = [path for path in changed if path in switches]
    events = (*_of_the_step(events, watches), *map(PythonStateChanged, without_holder))
    by_steps = {watch.path: watch.name for watch in watches if not watch.is_from_outside}
    return SeenOfHost(
        events, {**dict(zip(without_holder, without_holder, strict=True)), **by_steps}
    )


@contextmanager
def _drawn_from(generators: Sequence[Any]) -> Iterator[list[Any]]:
    """Fill the list at the end of the block: the generators whose state the block changed.

    No profiler sees a draw of NumPy's: what shows is the generator's state.
    """
    before, drawn = list(map(state_of, generators)), list[Any]()
    yield drawn
    drawn += [one for one, was in zip(generators, before, strict=True) if state_of(one) != was]


def _watched(session: Session, watches: Sequence[Watch]) -> HostObserver:
    inputs = session.inputs(0)
    observer = HostObserver(watches, Running(session.target.roots))
    with session.device.observed_by(observer), observer:
        session.call(inputs)
    return observer


def _of_the_step(
    events: Sequence[PythonEvent], watches: Sequence[StateWatch]
) -> Iterator[PythonEvent]:
    """Without what changes around the step; with what changes at no line that was seen."""
    outside = {watch.name for watch in watches if watch.is_from_outside}
    yield from (one for one in events if one.name not in outside)
    seen = {one.name for one in events}
    for watch in watches:
        if watch.name not in seen:
            yield PythonStateChanged(watch.name)


_LOOKS = 1000  # values that are looked at after each line of the step, in all


def storages_of(named: Mapping[str, torch.Tensor], table: StorageTable) -> dict[str, int]:
    """The number of the storage behind each tensor, by path."""
    return {path: table.info(tensor).number for path, tensor in named.items()}


class HostState:
    """Numbers, lengths and the identity of tensors at one moment."""

    def __init__(self, state: NamedState, table: StorageTable) -> None:
        named, values = state
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
