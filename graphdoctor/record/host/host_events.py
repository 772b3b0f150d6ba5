"""A session -> what its host draws, reads, asks and changes in a step."""

from __future__ import annotations

import _random
import gc
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from graphdoctor.record.host.lines import Seen, Watch
from graphdoctor.record.host.observer import HostObserver
from graphdoctor.record.host.python_state import StateWatch, lasting_changes, state_watches
from graphdoctor.record.host.running import Running
from graphdoctor.record.session import Session
from graphdoctor.target.state.globals import numpy_generator, process_values
from graphdoctor.target.state.walk import Walk
from graphdoctor.values.host_events import PythonEvent, PythonStateChanged, RandomDraw
from graphdoctor.values.recording import Iteration

# No profiler is told of NumPy's draws, nor of a function that C calls by itself, as `functools.partial(random.random)`
# and `operator.call` do: what shows is the generator's state.


def generators(roots: Mapping[str, object]) -> list[Any]:
    """Wherever they are: a cache or a package that the step asks may hold them, too.

    Python's garbage collector knows of all but those that were there when somebody froze it, and of Python's bare ones.
    """
    kinds: set[Any] = set(_with_subclasses(_random.Random))
    pythons = getattr(random.random, "__self__", None)
    owns: list[Any] = [pythons] if isinstance(pythons, _random.Random) else []
    if (numpys := numpy_generator()) is not None:
        owns.append(numpys)
        numpy = sys.modules["numpy"].random
        for kind in (numpy.Generator, type(numpys), numpy.BitGenerator):
            kinds.update(_with_subclasses(kind))
    held = [value for _, value, _ in Walk(roots, with_empty=False)]
    # Of hundreds of thousands of objects, in some tens of milliseconds: no line of Python for each.
    objects = held + gc.get_objects()
    found = [*owns, *compress(objects, map(kinds.__contains__, map(type, objects)))]
    owned = {id(bits) for one in found if (bits := _bits_of(one)) is not one}
    return list({id(one): one for one in found if id(one) not in owned}.values())


def _with_subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for each in kind.__subclasses__():
        yield from _with_subclasses(each)


class GeneratorState:
    """A generator, and where it was when it was last looked at."""

    def __init__(self, generator: Any) -> None:
        self._name = _name_of(generator)
        self._generator = generator
        self._seen = state_of(generator)

    def after_line(self, *, is_users: bool) -> Iterator[Seen]:
        before, self._seen = self._seen, state_of(self._generator)
        if before != self._seen and is_users:
            yield Seen(RandomDraw, self._name)


def _name_of(generator: Any) -> str:
    if isinstance(generator, _random.Random):
        return "random.Random"
    return "numpy.random.Generator" if hasattr(generator, "bit_generator") else "numpy.random"


def state_of(generator: Any) -> Any:
    """A generator's state, in a form that can be compared."""
    if isinstance(generator, _random.Random):  # without what a subclass makes of it
        return _random.Random.getstate(generator)
    return _plain(_bits_of(generator).state)


def _bits_of(generator: Any) -> Any:
    """What a generator draws from: itself, where it is nothing but bits."""
    owned = (getattr(generator, name, None) for name in ("bit_generator", "_bit_generator"))
    return next((one for one in owned if one is not None), generator)


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
    Lines are watched for draws that no call tells of, as NumPy's, only where a first look found that there are
    some, and for the Python state that was seen to change.
    """
    roots = session.target.roots
    known = generators(roots)
    with session.from_the_start(capturing=True):
        before = list(map(state_of, known))
        seen = _watched(session, [])
        unseen = [
            (one, was) for one, was in zip(known, before, strict=True) if id(one) not in seen.asked
        ]
        drawn = [generator for generator, was in unseen if state_of(generator) != was]
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
