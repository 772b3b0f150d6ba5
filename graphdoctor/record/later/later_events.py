"""Steps that differ later: branches in Python on state that each step changes.

Code can read a counter through a variable, a table, a property or another function. So the search does not read
the code: it sets the state to later values, as far as each step changes the state evenly, and runs the step.
"""

from __future__ import annotations

import dis
import linecache
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing
from functools import cached_property, partial
from itertools import zip_longest
from types import CodeType
from typing import NamedTuple, TypeVar

from graphdoctor.record.host.host_events import HostState, SeenOfHost, storages_of
from graphdoctor.record.host.observer import clocks_an_hour_ahead
from graphdoctor.record.later.sandbox import LeavesStep, LineTrace, sandboxed
from graphdoctor.record.later.trends import Trend, advance, moment, numbers_in, trends
from graphdoctor.record.operators import observe
from graphdoctor.record.session import Session
from graphdoctor.target.state.snapshot import named_state, named_tensors
from graphdoctor.target.user_code import raised_at
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.figures import count_text, names_text, shortened
from graphdoctor.values.host_events import (
    ClockRead,
    DiffersByClock,
    DiffersByState,
    LaterStepDiffers,
    LaterStepRaises,
    PythonEvent,
)
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Arg, External, Iteration, Leaf, Op, TensorUse

T = TypeVar("T")
Event = tuple[int, str, str]  # before which operator, of which kind, and what


class StepRun(NamedTuple):
    """What a run of the step did, as far as runs are compared.

    `state` names the memory of the state, by its number. `events` are what the host did between operators; a
    recorded run has none.
    """

    ops: Sequence[Op]
    state: Mapping[int, str]
    events: Sequence[Event] = ()
    outputs: Sequence[Leaf] = ()


def state_of(externals: Iterable[External]) -> dict[int, str]:
    """The names of the state's memory among what a run took from outside."""
    return {one.storage: one.name for one in externals if one.origin == "state"}


def first_difference(usual: StepRun, other: StepRun) -> Op | None:
    """The first operator that is another one, takes another tensor, or is one too many.

    Where other tensors or numbers are returned it is the last one.
    """
    memory = _Memory()
    for one, two in zip(usual.ops, other.ops, strict=False):
        if signature(one, usual.state) != signature(two, other.state):
            return two
        if not memory.is_same((*one.inputs, *one.outputs), (*two.inputs, *two.outputs)):
            return two
    if len(usual.ops) != len(other.ops):
        longer = max(usual.ops, other.ops, key=len)
        return longer[min(len(usual.ops), len(other.ops))]
    if usual.events != other.events:
        differing = (b for a, b in zip_longest(usual.events, other.events) if a != b)
        at, *_ = next(differing) or usual.events[-1]
        return other.ops[min(at, len(other.ops) - 1)] if other.ops else None
    if list(map(_plain, usual.outputs)) == list(map(_plain, other.outputs)) and memory.is_same(
        _tensors(usual.outputs), _tensors(other.outputs)
    ):
        return None
    return other.ops[-1] if other.ops else None


class _Memory:
    """Pairs the memory of two runs, which has another number in each, in the order in which they meet it."""

    def __init__(self) -> None:
        self._there: dict[int, int] = {}
        self._here: dict[int, int] = {}

    def is_same(self, here: Sequence[TensorUse], there: Sequence[TensorUse]) -> bool:
        pairs = ((one.storage, two.storage) for one, two in zip(here, there, strict=False))
        return all(
            self._there.setdefault(one, two) == two and self._here.setdefault(two, one) == one
            for one, two in pairs
        )


def _plain(leaf: Leaf) -> tuple[str, str | None]:
    is_told = isinstance(leaf.value, str) and " at 0x" not in leaf.value  # where an object lies
    return leaf.path, leaf.value if is_told else None  # type: ignore[return-value]


def _tensors(leaves: Sequence[Leaf]) -> list[TensorUse]:
    return [leaf.value for leaf in leaves if isinstance(leaf.value, TensorUse)]


def signature(op: Op, state: Mapping[int, str]) -> tuple[object, ...]:
    """What a graph freezes of an operator; of addresses those of the state alone, by its names."""

    def frozen(value: Arg) -> object:
        if isinstance(value, TensorUse):
            name = state.get(value.storage, "")
            return name, value.shape, value.stride, value.offset, value.dtype, value.device
        if isinstance(value, tuple):
            return tuple(map(frozen, value))
        return repr(value)  # NaN is like NaN

    return (
        op.name,
        tuple(map(frozen, op.args)),
        tuple((name, frozen(value)) for name, value in op.kwargs),
        tuple(map(frozen, op.outputs)),
    )


def all_match(runs: Sequence[StepRun]) -> bool:
    """Whether no recorded step differs from the first: else that is a finding already."""
    return all(first_difference(runs[0], other) is None for other in runs[1:])


_MOST_NAMES = 3
_SOME_TIME = "in a later step"


def with_later_steps(
    seen: SeenOfHost, session: Session, captured: Sequence[Iteration]
) -> Iterator[PythonEvent]:
    """The events, and one for the branch by which a later step differs from the recorded ones.

    Steps that differ among themselves are findings of other rules. With several ranks nothing is tried: the
    others would wait.
    """
    yield from seen.events
    if session.raises is not None:  # before later steps could be compared
        what = str(session.raises).removeprefix("running the step failed: ")
        yield LaterStepRaises(what, calls=session.raises.calls)
        return
    shapes = captured[0].input_shapes
    alike = [
        StepRun(one.ops, state_of(one.externals)) for one in captured if one.input_shapes == shapes
    ]
    if session.device.meeting.has_others or not session.device.has_values or not all_match(alike):
        return
    clocks = sorted({event.name for event in seen.events if isinstance(event, ClockRead)})
    if not clocks and not seen.changing:
        return
    trials, lines = Trials(session), LineTrace()
    if not any(trials.in_time((True,))):
        return
    with session.from_the_start(capturing=True), lines.counted():
        session.call(session.inputs(0))
    if clocks and (other := _an_hour_later(trials, lines)) is not None:
        yield _branch(DiffersByClock, other, clocks, "an hour later")
    if seen.changing:
        yield from _at_later_steps(trials, seen.changing, lines)


def _at_later_steps(
    trials: Trials, names: Mapping[str, str], lines: LineTrace
) -> Iterator[PythonEvent]:
    """The step is run with all that it changes set to later values, and then a few times in a row.

    A later step may change state that usual steps leave alone, as a counter of epochs. Such state is set
    to later values as well.
    """
    session, roots = trials.session, trials.session.target.roots
    with session.from_the_start(capturing=True):
        first, numbers = moment(roots, names), numbers_in(roots)
        session.call(session.inputs(0))
        second = moment(roots, names)
        session.call(session.inputs(0))
        found = trends(first, second, moment(roots, names))
    other, same = nearest_other_step(trials, found, lines, numbers)
    if other is None:
        for steps in trials.in_time(same):
            seldom = _seldom_changed(trials, found, steps, names, lines)
            if not seldom:
                continue
            other, _ = nearest_other_step(trials, seldom, lines, numbers)
            if other is not None:
                paths = [str(one.path.inner) for one in seldom]
                yield _branch(DiffersByState, other, paths, _SOME_TIME)
                return
        is_foreseen = not set(names).difference(str(trend.path) for trend in found)
        other = first_other_step(trials, lines, is_foreseen=is_foreseen)
    if other is not None:
        after = f"after {count_text(other.steps, 'more step')}"
        yield _branch(DiffersByState, other, names.values(), _SOME_TIME if other.is_far else after)


def _seldom_changed(
    trials: Trials, found: Sequence[Trend], steps: int, names: Iterable[str], lines: LineTrace
) -> list[Trend]:
    """How state continues that the step changes only so many steps later, such as every hundredth time."""
    session, roots = trials.session, trials.session.target.roots

    def run() -> None:
        advance(found, steps)
        with sandboxed(lines):
            session.call(session.inputs(0))

    try:
        with session.from_the_start(capturing=True):
            before = HostState(named_state(roots), session.device.table)
            run()
            changes = before.changes(HostState(named_state(roots), session.device.table))
        paths = {one.path for one in changes if one.kind != "rebound-tensor"}.difference(names)
        if not paths:
            return []
        with session.from_the_start(capturing=True):
            moments = [moment(roots, paths)]
            for _ in range(2):
                run()
                moments.append(moment(roots, paths))
            return trends(*moments)
    except (LeavesStep, GraphDoctorError):
        return []


def _an_hour_later(trials: Trials, lines: LineTrace) -> OtherStep | None:
    """The step with Python's clocks set an hour ahead."""
    try:
        with ExitStack() as stack, sandboxed(lines) as seen:
            ran_later = trials.moved(partial(stack.enter_context, clocks_an_hour_ahead()))
    except LeavesStep as left:
        return OtherStep(0, left.place, True, branch=left.place)
    except GraphDoctorError:
        return None
    other = first_difference(trials.usual, ran_later)
    if other is None or not matches_recorded(trials, lines):
        return None
    return OtherStep(0, other.location, True, other.index, lines.branch_to(seen))


def _branch(
    kind: type[LaterStepDiffers], other: OtherStep, names: Iterable[str], when: str
) -> LaterStepDiffers:
    place = other.branch or other.place
    line = linecache.getline(place.file, place.line).partition("#")[0].strip() if place else ""
    code = f"`{shortened(line)}` differs" if line else "The step differs"
    return kind(
        names_text(tuple(dict.fromkeys(names)), most=_MOST_NAMES),
        op_index=other.op_index,
        location=place,
        difference=f"{code} {when}",
    )


# Many whole numbers divide the first: 2 to 128, 3, 5, 10, 60, 100, 300. A step that cannot be so far on, since
# it counts places of something for example, is tried at fewer.
FAR = (9_600, 240, 12)
_MOST_RUNS = 16
_MOST_OPERATORS = 6_000  # in all of them
_MOST_IN_A_ROW = 64
_LINES_IN_A_ROW = 10_000
_FEWER_IF_FORESEEN = 5
_LOADS_NUMBER = dis.opmap.get("LOAD_SMALL_INT")


class OtherStep(NamedTuple):
    """The first later step that differs: `steps` after this one, or at some time before, if `is_far`.

    `place` is its first operator that differs, before which `op_index` operators ran, and `branch` the line
    after which it continues at another one.
    """

    steps: int
    place: Location | None
    is_far: bool
    op_index: int = 0
    branch: Location | None = None


def nearest_other_step(
    trials: Trials, trends: Sequence[Trend], lines: LineTrace, numbers: Sequence[int]
) -> tuple[OtherStep | None, list[int]]:
    """The nearest of some later steps that issues other operators, shapes or numbers; None: all are as usual.

    `lines` are those of a usual step, `numbers` what its state may be compared with. The list has the
    later steps that issue the same.
    """
    runs = min(_MOST_RUNS, _MOST_OPERATORS // max(1, len(trials.usual.ops)))
    search = _Search(trials, trends, lines)
    for far in FAR:
        for steps in trials.in_time(_far(trends, far)):
            search.look(steps, is_far=True)
        if search.has_run:
            break
    names = {trend.path.own_name for trend in trends}
    pairs = zip_longest(constants(lines.codes, names), numbers)
    near = _near(trends, [each for pair in pairs for each in pair if each is not None])
    for steps in trials.in_time(sorted(near[:runs])):
        search.look(steps, is_far=False)
    is_found = search.found is not None and matches_recorded(trials, lines)
    return search.found if is_found else None, search.same


def runs_of(usual: StepRun) -> int:
    """How many more of a step are not too many."""
    return _MOST_OPERATORS // (2 * max(1, len(usual.ops)))


def first_other_step(trials: Trials, lines: LineTrace, *, is_foreseen: bool) -> OtherStep | None:
    """The first of the next steps, which go on from each other, that is another one.

    Where all that changes was set to where it will be, few steps are run.
    """
    most = runs_of(trials.usual) // (_FEWER_IF_FORESEEN if is_foreseen else 1)
    many = min(_MOST_IN_A_ROW, most, _LINES_IN_A_ROW // max(1, lines.count))
    with closing(trials.in_a_row()) as in_a_row:
        runs = (next(in_a_row) for _ in trials.in_time(range(many)))
        found = first_other_of(runs, trials.usual, lines)
    return found if found is not None and matches_recorded(trials, lines) else None


def first_other_of(
    in_a_row: Iterator[StepRun], usual: StepRun, lines: LineTrace
) -> OtherStep | None:
    """The first of these steps that is another one."""
    steps = 0
    while True:
        try:
            with sandboxed(lines) as seen:
                run = next(in_a_row, None)
                if run is None:
                    return None
                other = first_difference(usual, run)
        except LeavesStep as left:
            return OtherStep(steps, left.place, False, branch=lines.branch_to(seen) or left.place)
        except GraphDoctorError as error:  # it fails then
            place = raised_at(error)
            return OtherStep(steps, place, False, branch=lines.branch_to(seen) or place)
        if other is not None:
            branch = lines.branch_to(seen)
            return OtherStep(steps, other.location, False, other.index, branch)
        steps += 1


def matches_recorded(trials: Trials, lines: LineTrace) -> bool:
    """Whether the step does the same from the same state: else it is another one each time, or writes each time."""
    try:
        with sandboxed(lines):
            return first_difference(trials.usual, trials.moved(lambda: None)) is None
    except LeavesStep:
        return False


class _Search:
    """Runs the step with its state some steps later, and keeps the nearest where it is another one."""

    def __init__(self, trials: Trials, trends: Sequence[Trend], lines: LineTrace) -> None:
        self._trials, self._trends, self._lines = trials, trends, lines
        self.found: OtherStep | None = None
        self.same: list[int] = []
        self.has_run = False  # in some later state; else the step failed in all of them

    def look(self, steps: int, *, is_far: bool) -> None:
        if self.found is not None and steps >= self.found.steps:
            return
        try:
            with sandboxed(self._lines) as seen:
                run = self._trials.moved(lambda: advance(self._trends, steps))
        except LeavesStep as left:
            branch = self._lines.branch_to(seen) or left.place
            self.found, self.has_run = OtherStep(steps, left.place, is_far, branch=branch), True
            return
        except GraphDoctorError:  # the state cannot be that
            return
        self.has_run = True
        other = first_difference(self._trials.usual, run)
        if other is not None:
            branch = self._lines.branch_to(seen)
            self.found = OtherStep(steps, other.location, is_far, other.index, branch)
        else:
            self.same.append(steps)


def constants(codes: Iterable[CodeType], names: Set[str]) -> list[int]:
    """The whole numbers in code that ran, and in functions that it makes; first those of code that names the state."""
    found: dict[int, None] = {}

    def is_about_state(code: CodeType) -> bool:
        texts = (const for const in code.co_consts if isinstance(const, str))
        return not names.isdisjoint((*code.co_names, *code.co_freevars, *texts))

    waiting = sorted(codes, key=is_about_state)  # taken from the end
    while waiting:
        code = waiting.pop()
        for const in (*_in_instructions(code), *code.co_consts):
            if isinstance(const, CodeType):
                waiting.append(const)
            for each in const if isinstance(const, (tuple, frozenset)) else (const,):
                if type(each) in (int, float) and math.isfinite(each) and each == int(each):
                    found.setdefault(int(each))
    return list(found)


def _in_instructions(code: CodeType) -> Iterator[int]:
    """Numbers below 256 are no constants since Python 3.14."""
    if _LOADS_NUMBER is not None:
        instructions = zip(code.co_code[::2], code.co_code[1::2], strict=True)
        yield from (number for loads, number in instructions if loads == _LOADS_NUMBER)


def _far(trends: Sequence[Trend], far: int) -> list[int]:
    """Steps after which what is counted is a number that many others divide, or one less, or at its end."""
    found: dict[int, None] = {}
    for trend in trends:
        if trend.end is not None:
            found.update(dict.fromkeys((trend.end // 2, trend.end)))
        for steps in trend.until(far):
            found.update(dict.fromkeys((steps - 1, steps)))
    return [steps for steps in found if steps > 0][:4] or [far]


def _near(trends: Sequence[Trend], numbers: Sequence[int]) -> list[int]:
    """Steps before and after which what is counted is one of these numbers, in their order."""
    found: dict[int, None] = {}
    for each in numbers:
        for steps in (steps for trend in trends for steps in trend.until(each)):
            found.update(dict.fromkeys(one for one in (steps - 1, steps) if 0 < one <= FAR[0]))
    return list(found)


class Trials:
    """Runs of a session's step that are compared with the recorded ones."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def in_time(self, items: Iterable[T]) -> Iterator[T]:
        """Those for which there is time: none is needed."""
        return self.session.in_time(items, "later steps")

    @cached_property
    def usual(self) -> StepRun:
        """The step from its start."""
        return self.moved(lambda: None)

    def moved(self, move: Callable[[], None]) -> StepRun:
        """The step from its start, after a change of its state; what it changes itself is not looked at."""
        with self.session.from_the_start(capturing=True):
            storages = self._storages_at_start
            move()
            return self._ran(storages)

    def in_a_row(self) -> Generator[StepRun, None, None]:
        """One step after the other from the start, as long as the caller takes them."""
        with self.session.from_the_start(capturing=True):
            while True:
                yield self._ran(self._storages())

    @cached_property
    def _storages_at_start(self) -> Mapping[str, int]:
        return self._storages()

    def _storages(self) -> Mapping[str, int]:
        return storages_of(named_tensors(self.session.target.roots), self.session.device.table)

    def _ran(self, storages: Mapping[str, int]) -> StepRun:
        # The first iteration once more, by its own number: nothing of it is recorded.
        seen = observe(self.session, 0, run=1, storages=storages)
        observer = seen.observer
        events = [(one.op_index, type(one).__name__, one.name) for one in observer.events]
        state = state_of(observer.externals.values())
        return StepRun(observer.ops, state, events, seen.outputs)
