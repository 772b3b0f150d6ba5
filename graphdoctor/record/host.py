"""A run of the step, watched on the host only -> the random draws and clock readings in it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from graphdoctor.device.observe.operators import Call
from graphdoctor.record.lines import Lines, Seen, Watch
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
    `watches` are what shows by its state alone, after each line: NumPy's generators, the step's Python state.
    """

    def __init__(self, watches: Sequence[Watch] = ()) -> None:
        self._lines = Lines(watches, self._add)
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
        self._lines.__enter__()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _profile_by(self._before)
        self._lines.__exit__()

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

    def _add(self, kind: EventKind, name: str, place: Place, detail: str = "") -> None:
        self.events.append(
            HostEvent(
                kind=kind,
                name=name,
                detail=detail,
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


class NumpyState:
    """A generator of NumPy's, and where it was when it was last looked at."""

    def __init__(self, generator: Any) -> None:
        self._name = "numpy.random" if _is_legacy(generator) else "numpy.random.Generator"
        self._generator = generator
        self._seen = state_of(generator)

    def before_line(self, frame: FrameType) -> Iterator[Seen]:
        """A line tells nothing of what it will draw."""
        yield from ()

    def after_line(self, *, is_users: bool) -> Iterator[Seen]:
        before, self._seen = self._seen, state_of(self._generator)
        if is_users and before != self._seen:
            yield Seen("host-random", self._name)


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
