"""A run of the step, watched on the host only -> the random draws and clock readings in it."""

from __future__ import annotations

import random
import sys
import time
from types import FrameType
from typing import Any

from graphdoctor.emulator.dispatch import Call
from graphdoctor.frames import is_machinery, locate_from
from graphdoctor.recording import HostEvent

_CLOCKS = frozenset(
    {
        time.time, time.time_ns, time.perf_counter, time.perf_counter_ns,
        time.monotonic, time.monotonic_ns, time.process_time, time.process_time_ns,
    }
)  # fmt: skip
_RANDOM_MODULE = random.__file__


class HostObserver:
    """Watches calls of C functions by `sys.setprofile`; counts operators to place what it sees.

    It sees a draw however its function was imported. A draw counts when the user's own code asked
    for it: torch and Python's library draw for purposes that never reach a kernel.
    """

    def __init__(self) -> None:
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
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.setprofile(self._before)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "c_call":
            return
        kind = _kind_of(arg)
        if kind is None:
            return
        caller: FrameType | None = frame
        while caller is not None and caller.f_code.co_filename == _RANDOM_MODULE:
            caller = caller.f_back
        if caller is None or is_machinery(caller.f_code.co_filename):
            return
        place = locate_from(caller)
        self.events.append(
            HostEvent(
                kind="host-random" if kind == "random" else "host-time",
                name=_name_of(arg, kind),
                op_index=self._operators,
                location=place.location,
                stack=place.stack,
            )
        )


def _kind_of(function: Any) -> str | None:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random):
        return None if function.__name__ in ("getstate", "setstate") else "random"
    if type(owner).__module__.startswith("numpy.random"):
        return None if function.__name__ in ("get_state", "set_state") else "random"
    try:
        return "time" if function in _CLOCKS else None
    except TypeError:  # a callable that cannot be hashed
        return None


def _name_of(function: Any, kind: str) -> str:
    if kind == "time":
        return f"time.{function.__name__}()"
    module = "random" if isinstance(function.__self__, random.Random) else "numpy.random"
    return f"{module}.{function.__name__}()"
