"""Runs of the step that nobody records, as far as they are compared."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Protocol

from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.record.python_state import HostState
from graphdoctor.record.sameness import Ran, ran
from graphdoctor.record.session import Session
from graphdoctor.target.state.globals import kernel_switches
from graphdoctor.values.recording import Iteration


class Observe(Protocol):
    """Runs a session's step once, from the state that is named, and tells what it did; another one looks, too."""

    def __call__(self, session: Session, before: HostState, also: Observer) -> Iteration: ...


class Trials:
    """Ways to run the step that are compared with the recorded ones."""

    def __init__(self, session: Session, observe: Observe) -> None:
        self._session = session
        self._observe = observe

    def moved(self, move: Callable[[], None]) -> Ran:
        """The step from its start, after a change of its state; what it changes itself is not looked at."""
        session = self._session
        with session.from_the_start(capturing=True):
            move()
            return self._ran(HostState(session.target.roots, session.device.table))

    def in_a_row(self, move: Callable[[], None] = lambda: None) -> Generator[Ran, None, None]:
        """One step after the other, from the start and a change on, for as long as somebody asks."""
        session = self._session
        with session.from_the_start(capturing=True):
            move()
            before = HostState(session.target.roots, session.device.table)
            while True:
                seen = self._ran(before)
                after = HostState(session.target.roots, session.device.table)
                changed = {_whole(one.path) for one in before.changes(after)}
                yield seen._replace(changed=changed.union(_new(before, after)))
                before = after

    def _ran(self, before: HostState) -> Ran:
        switches = _Switches()
        seen = self._observe(self._session, before, switches)
        events = [(one.op_index, one.kind, one.name) for one in seen.events]
        return ran(seen.ops, seen.externals, switches.seen, events)._replace(outputs=seen.outputs)


def _whole(path: str) -> str:
    """What holds it: of a long list its contents are told, of a short one its length."""
    return path.partition("(")[2].removesuffix(")") if path.endswith(")") else path


def _new(before: HostState, after: HostState) -> Iterator[str]:
    """Attributes that the state has got; of what a container gets, its length tells."""
    yield from (path for path in after.values.keys() - before.values if not path.endswith("]"))


class _Switches(Observer):
    """Notes at each operator by what kernels are chosen. An observer of a device."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def after(self, call: Call) -> None:
        self.seen.append(kernel_switches())
