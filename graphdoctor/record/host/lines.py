"""A run of the step, line by line -> what only its state shows: at which line it changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple, Protocol

from graphdoctor.target.frames import Place, is_machinery, locate_from
from graphdoctor.values.host_events import PythonEvent


class Seen(NamedTuple):
    """What a watch has to tell."""

    kind: type[PythonEvent]
    name: str


class Watch(Protocol):
    """Something to compare after each line of the user's."""

    def after_line(self, *, is_users: bool) -> Iterator[Seen]:
        """What has changed since it was last asked; not `is_users`: while no line of the user's ran."""
        ...


class WatchedLines:
    """Asks its watches at each line of the user's, in the calling thread.

    Compiled methods, such as NumPy's and those of lists, are seen by no profile function: what shows
    what they did is the state that they leave behind.
    """

    def __init__(self, watches: Sequence[Watch], found: Callable[..., None]) -> None:
        self._watches = watches
        self._found = found  # called with the kind, the name and the place
        self._last = Place(None, (), False)
        self._before: Any = None

    def __enter__(self) -> WatchedLines:
        self._before = sys.gettrace()
        if self._watches:
            sys.settrace(self._call)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._watches:
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
        place = self._last
        for watch in self._watches:
            for seen in watch.after_line(is_users=place.location is not None):
                self._found(seen.kind, seen.name, place)
