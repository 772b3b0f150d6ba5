"""A run of the step, watched line by line -> the lines of the user's that drew from NumPy.

NumPy's methods are compiled so that no profile function sees their calls. What shows a draw is the
generator's state, which is compared at each line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from graphdoctor.target.frames import Place, is_machinery, locate_from
from graphdoctor.target.state.walk import Walk


def numpy_generators(roots: Mapping[str, object]) -> list[Any]:
    """NumPy's global generator, and those that the roots hold."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return []
    kinds = (numpy.random.Generator, numpy.random.RandomState)
    held = [value for _, value, _ in Walk(roots, with_empty=False) if isinstance(value, kinds)]
    return [numpy.random.get_state.__self__, *held]


class NumpyDraws:
    """Finds the lines, in the calling thread, after which a generator is in another state."""

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
