"""A run of the step, watched on the host only -> the random draws and clock readings in it."""

from __future__ import annotations

import random
import sys
import time
from types import FrameType
from typing import Any

from graphdoctor.device.observe.operators import Call
from graphdoctor.record.numpy_draws import NumpyDraws
from graphdoctor.target.frames import Place, is_machinery, locate_from
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
        sys.setprofile(self._before)
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
