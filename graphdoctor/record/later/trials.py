"""Runs of the step that nobody records, as far as they are compared."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import cached_property

from graphdoctor.record.host.python_state import storages_of
from graphdoctor.record.iteration import observe
from graphdoctor.record.later.sameness import Ran, ran
from graphdoctor.record.session import Session
from graphdoctor.target.state.snapshot import named_tensors


class Trials:
    """Runs of a session's step that are compared with the recorded ones."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @cached_property
    def usual(self) -> Ran:
        """The step from its start."""
        return self.moved(lambda: None)

    def moved(self, move: Callable[[], None]) -> Ran:
        """The step from its start, after a change of its state; what it changes itself is not looked at."""
        with self.session.from_the_start(capturing=True):
            storages = self._storages_at_start
            move()
            return self._ran(storages)

    def in_a_row(self) -> Generator[Ran, None, None]:
        """One step after the other from the start, as long as the caller takes them."""
        with self.session.from_the_start(capturing=True):
            while True:
                yield self._ran(self._storages())

    @cached_property
    def _storages_at_start(self) -> Mapping[str, int]:
        return self._storages()

    def _storages(self) -> Mapping[str, int]:
        return storages_of(named_tensors(self.session.target.roots), self.session.device.table)

    def _ran(self, storages: Mapping[str, int]) -> Ran:
        # The first iteration once more, by its own number: nothing of it is recorded.
        seen = observe(self.session, 0, run=1, storages=storages)
        observer = seen.observer
        events = [(one.op_index, type(one).__name__, one.name) for one in observer.events]
        return ran(observer.ops, observer.externals.values(), events, seen.outputs)
