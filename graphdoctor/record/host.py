"""A run of the step, watched on the host only -> the random draws and clock readings in it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from graphdoctor.device.observe.operators import Call
from graphdoctor.target.frames import Place, is_machinery, locate_from
from graphdoctor.target.state.walk import Walk
from graphdoctor.values.recording import EventKind, HostEvent

_CLOCKS = frozenset(
    {
        time.time, time.time_ns, time.perf_counter, time.perf_counter_ns,
        time.monotonic, time.monotonic_ns, time.process_time, time.process_time_ns,
    }
)  # fmt: skip
_RANDOM_MODULE = random.__file__
_DRAW_NOTHING = frozenset({"getstate", "setstate", "seed"})


class HostObserver:
    """Watches calls of C functions by `sys.setprofile`; counts operators to place what it sees.

    It sees a draw however its function was imported. A draw counts when the user's own code asked
    for it: torch and Python's library draw for purposes that never reach a kernel.
    `generators` are NumPy's, whose draws only their state shows.
    """

    def __init__(self, generators: list[Any]) -> None:
        self._numpy = NumpyDraws(generators, self._numpy_draw)
        self.events: list[HostEvent] = []
        self._operators = 0
        self._before: Any = None

    def before(self, call: Call) -> None:
        """Nothing to see before an operator."""

    def after(self, call: Call) -> None:
        self._operators += 1

    def event(self, kind: str, name: str, detail: str) -> None:
        """Device events are the operator observer's."""

    def __enter__(self) -> HostObserver:
        self._before = sys.getprofile()
        self._numpy.__enter__()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _profile_by(self._before)
        self._numpy.__exit__()

    def _numpy_draw(self, place: Place, name: str) -> None:
        self._add("host-random", name, place)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        found: _Found | None
        caller: FrameType | None
        if event == "c_call":
            found, caller = _built_in(arg), frame
        elif event == "call" and frame.f_code.co_filename == _RANDOM_MODULE:
            # Where it is asked for, and not where it draws: gauss() draws in every second call.
            found, caller = _of_random_module(frame.f_code.co_name), frame.f_back
        else:
            return
        if found is None or caller is None or is_machinery(caller.f_code.co_filename):
            return
        kind, name = found
        self._add(kind, name, locate_from(caller))

    def _add(self, kind: EventKind, name: str, place: Place) -> None:
        self.events.append(
            HostEvent(
                kind=kind,
                name=name,
                op_index=self._operators,
                location=place.location,
                stack=place.stack,
            )
        )


def _profile_by(before: Any) -> None:
    """Put back what profiled. cProfile's hook is in C, which only the profiler itself can set."""
    if before is None or callable(before):
        sys.setprofile(before)
        return
    sys.setprofile(None)
    before.enable()


_Found = tuple[EventKind, str]


def _built_in(function: Any) -> _Found | None:
    """A C function that draws or reads a clock."""
    if isinstance(getattr(function, "__self__", None), random.Random):
        return _of_random_module(function.__name__)
    try:
        return ("host-time", f"time.{function.__name__}()") if function in _CLOCKS else None
    except TypeError:  # a callable that cannot be hashed
        return None


def _of_random_module(name: str) -> _Found | None:
    return (
        None
        if name in _DRAW_NOTHING or name.startswith("_")
        else ("host-random", f"random.{name}()")
    )


def numpy_generators(roots: Mapping[str, object]) -> list[Any]:
    """NumPy's global generator, and those that the roots hold."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    kinds = (numpy.random.Generator, numpy.random.RandomState)
    held = [value for _, value, _ in Walk(roots, with_empty=False) if isinstance(value, kinds)]
    return [numpy.random.get_state.__self__, *held]


class NumpyDraws:
    """Finds the lines, in the calling thread, after which a generator is in another state.

    NumPy's methods are compiled so that no profile function sees their calls. What shows a draw is
    the generator's state, which is compared at each line.
    """

    def __init__(self, generators: list[Any], found: Any) -> None:
        self._states = [_State(generator) for generator in generators]
        self._found = found  # called with the place and the generator's name
        self._last: Place | None = None
        self._before: Any = None

    def __enter__(self) -> NumpyDraws:
        self._before = sys.gettrace()
        if self._states:
            sys.settrace(self._call)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._states:
            sys.settrace(self._before)
            self._check()

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        return None if is_machinery(frame.f_code.co_filename) else self._line

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        self._check()
        if event == "line":
            self._last = locate_from(frame)
        elif event == "return":
            self._last = locate_from(frame.f_back)
        return self._line

    def _check(self) -> None:
        for state in self._states:
            if state.has_moved() and self._last is not None:
                self._found(self._last, state.name)


class _State:
    """A generator, and where it was when it was last looked at."""

    def __init__(self, generator: Any) -> None:
        self.name = "numpy.random" if _is_legacy(generator) else "numpy.random.Generator"
        self._generator = generator
        self._seen = state_of(generator)

    def has_moved(self) -> bool:
        now = state_of(self._generator)
        moved: bool = now != self._seen
        self._seen = now
        return moved


def state_of(generator: Any) -> Any:
    """A generator's state, in a form that can be compared."""
    bits = generator._bit_generator if _is_legacy(generator) else generator.bit_generator
    return _plain(bits.state)


def _is_legacy(generator: Any) -> bool:
    return not hasattr(generator, "bit_generator")


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state
