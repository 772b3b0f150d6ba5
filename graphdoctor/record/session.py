"""A target in steady state, with fixed fresh inputs: every run starts from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from operator import is_
from typing import TypeVar

import torch

from graphdoctor.device.observe.dropout_states import DropoutStates
from graphdoctor.device.observe.earlier_graphs import mark_held_accumulations
from graphdoctor.device.observe.fallback import EmulationLimit
from graphdoctor.device.observe.known_results import forget_unused_results
from graphdoctor.device.open import AnyDevice
from graphdoctor.record.held_by_wrappers import path_of_ddp
from graphdoctor.record.scopes import Scopes
from graphdoctor.record.variation import Outcome, PathObserver, in_turn, settled
from graphdoctor.target.state.clone import clone_inputs, memory_of, tensor_leaves
from graphdoctor.target.state.snapshot import Snapshot, named_tensors, snapshot
from graphdoctor.target.state.tree import unused
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import user_code
from graphdoctor.values.errors import RaisesInCapture, RaisesLater, UserCodeError
from graphdoctor.values.recording import Unreached

T = TypeVar("T")
WARM_UPS = 3  # torch's own advice before a capture; the first iterations create state
_DDP_WARM_UPS = 11  # in the first ten steps it times itself with events, which a capture refuses
# There are no libraries that tune themselves: the first run makes state, the second is the first to find it.
_EMULATED_WARM_UPS = 2
_AS_CAPTURED = (
    "running the step in eager worked, but running it as in a capture, where"
    " torch.cuda.is_current_stream_capturing() is true,"
)
FEWEST_COMPARED = 2  # iterations, without which nothing is known
FEWEST_REPLAYS = 3  # one may agree by chance, and the second is the first that can see old state


# Inputs, by id, whose tensors share no memory with the state. An object among them may hold another tensor later;
# the same tensors never become state, since the step gets clones of them.
_Apart = dict[int, tuple[Inputs, list[torch.Tensor]]]

_Contexts = tuple[Callable[[], AbstractContextManager[object]], ...]
_AROUND_CALLS: ContextVar[_Contexts] = ContextVar("_AROUND_CALLS", default=())


@contextmanager
def calls_inside(*contexts: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """In this block each call of a step is made inside of these: it alone, and not all that looks at it."""
    token = _AROUND_CALLS.set(contexts)
    try:
        yield
    finally:
        _AROUND_CALLS.reset(token)


@dataclass(frozen=True, slots=True)
class Session:
    """A warmed-up target. `batches` are its iterations' inputs, cloned for each run."""

    target: Target
    device: AnyDevice
    batches: tuple[Inputs, ...]
    start: Snapshot
    scopes: Scopes
    raises: RaisesLater | None = None  # after so many calls from the start as there are batches
    deadline_s: float | None = None  # by time.monotonic()
    unreached: set[Unreached] = field(default_factory=set, compare=False)
    _apart: _Apart = field(default_factory=dict, compare=False)

    def up_to(self, error: RaisesLater) -> Session:
        """The same, without the iterations from the one on in which the step raises."""
        return replace(self, batches=self.batches[: error.calls], raises=error)

    def first(self, count: int) -> Session:
        """The same, with its first iterations only."""
        return replace(self, batches=self.batches[:count])

    @property
    def is_late(self) -> bool:
        """Whether the time for the diagnosis is over. Several ranks have to end together, so theirs is not."""
        has_limit = self.deadline_s is not None and not self.device.meeting.has_others
        return has_limit and time.monotonic() > self.deadline_s  # type: ignore[operator]

    def in_time(self, items: Iterable[T], what: Unreached, *, fewest: int = 0) -> Iterator[T]:
        """The items, until the time is over; the fewest come all the same. What is left out is noted."""
        for number, item in enumerate(items):
            if number >= fewest and self.is_late:
                self.unreached.add(what)
                return
            yield item

    @contextmanager
    def from_the_start(self, *, capturing: bool) -> Iterator[None]:
        """Run iterations in this block: state and generators are at the start, and put back."""
        assuming = self.device.assuming_capture() if capturing else nullcontext()
        with self.start.around(), assuming, self.scopes.followed():
            yield

    def inputs(self, index: int) -> Inputs:
        """The inputs of one iteration, on memory of their own; state that is passed in stays itself."""
        return _cloned(self.batches[index], self.target, self._apart, self.batches)

    def batches_for_proof(self) -> tuple[Inputs, ...]:
        """The session's inputs, and as many new ones as a proof needs where it has few iterations."""
        is_cut = self.raises is not None or "steps" in self.unreached
        missing = 0 if is_cut else max(0, FEWEST_REPLAYS - len(self.batches))
        with user_code("making the inputs"):
            return (*self.batches, *(self.target.fresh_inputs() for _ in range(missing)))

    def call(self, inputs: Inputs) -> object:
        with user_code("running the step"), ExitStack() as stack:
            for entered in _AROUND_CALLS.get():
                stack.enter_context(entered())
            return self.target.step(*inputs.args, **inputs.kwargs)


def prepare(
    target: Target, device: AnyDevice, *, iterations: int, deadline_s: float | None = None
) -> Session:
    """Warm the target up, draw its inputs, and remember where it stands.

    Inputs that the step does not accept with other values stay as given. What is warm begins where
    it is: each run of it starts from there, since its inputs may not fit any other state.
    The step also warms up as if it were captured: what code does once on that path only, such
    as filling a cache, is no part of the steady state either. The random state of cuDNN's dropout becomes a root.
    Where enough others follow, the first iteration gets what the step warmed up on: the values as they
    were given are proven, too. Past `deadline_s`, by `time.monotonic()`, little is run that is not needed.
    """
    check_has_values(target)
    scopes = Scopes(target.roots)
    with user_code("making the inputs"):
        first = target.fresh_inputs()
    device.leave_default_stream()
    if target.held_by or not target.is_warm:
        mark_held_accumulations(target.roots, target.held_by)
    before = snapshot(target.roots) if target.is_warm else None
    runs = _Runs(target, device)
    found = DropoutStates()
    looks: AbstractContextManager[object] = (
        found if draws_in_rnns(target, device) else nullcontext()
    )
    with scopes.followed(), user_code("running the step"), looks:
        given = _warmed_up(runs, first, before)
    if states := found.rewound():
        roots = dict(target.roots)
        for state in states:
            roots[unused("dropout_state", roots)] = state
        target = replace(target, roots=roots)
        before = before and snapshot(roots)
    forget_unused_results()  # of states that do not come again
    with scopes.followed():
        target, warm = settled(target, runs.ran, given=given, device=device, start=before)
    with user_code("making the inputs"):
        missing = iterations - 1 if iterations > FEWEST_REPLAYS else iterations
        others = tuple(target.fresh_inputs() for _ in range(missing))
    if target.variation is not None:
        # What is captured and replayed later gets values that the recorded runs have accepted.
        target = in_turn(target, (first, *others))
    batches = (first, *others)[-iterations:]
    start = before or warm or snapshot(target.roots, memory=device.table)
    return Session(target, device, batches, start, scopes, deadline_s=deadline_s)


def _cloned(inputs: Inputs, target: Target, apart: _Apart, others: Iterable[Inputs] = ()) -> Inputs:
    """Copies of the inputs, without copies of state among them; a search for state includes the `others`."""
    _, known = apart.get(id(inputs), (None, []))
    tensors = list(tensor_leaves(inputs))
    if len(known) == len(tensors) and all(map(is_, known, tensors)):
        return clone_inputs(inputs)
    state = memory_of(named_tensors(target.roots).values())
    for each in (inputs, *others):
        tensors = list(tensor_leaves(each))
        if state.isdisjoint(memory_of(tensors)):
            apart[id(each)] = each, tensors
    return clone_inputs(inputs, kept=state)


class _Runs:
    """Runs of a target's step before there is a session, on copies of inputs.

    They are observed where their paths are compared, which takes several times as long.
    """

    def __init__(self, target: Target, device: AnyDevice) -> None:
        self.target, self.device = target, device
        self._apart: _Apart = {}
        varies = target.variation
        self._has_whole_numbers = varies is not None and bool(varies.whole_numbers)

    def ran(self, inputs: Inputs, *, at: int = -1) -> Outcome:
        """Observed, where whole numbers may lead to another path, or other ranks wait for this one."""
        if self._has_whole_numbers or self.device.meeting.has_others:
            return self.observed(inputs, at=at)
        return self._outcome(self.plain(inputs), PathObserver())

    def plain(self, inputs: Inputs) -> object:
        if id(inputs) not in self._apart:
            self._apart.clear()  # what was tried is not to be held
        warm = _cloned(inputs, self.target, self._apart)
        return self.target.step(*warm.args, **warm.kwargs)

    def observed(self, inputs: Inputs, *, at: int = -1) -> Outcome:
        """Ranks are kept in step where one of them raises; it takes longer."""
        observer = PathObserver(at)
        with self.device.observed_by(observer):
            result = self.plain(inputs)
        return self._outcome(result, observer)

    def _outcome(self, result: object, observer: PathObserver) -> Outcome:
        # Nobody can look at what has no values.
        return Outcome(result if self.device.has_values else None, observer.path, observer.place)


def _warmed_up(runs: _Runs, first: Inputs, start: Snapshot | None) -> Outcome:
    """Run the step until it is warm, last as it would be captured; what is warm runs from its start each time.

    Where nothing asks whether it is captured, that run is eager's, too; else eager's comes after it.
    """
    unlooked: Callable[[Inputs], object] = (
        runs.observed if runs.device.meeting.has_others else runs.plain
    )
    if start is None:
        is_emulated = runs.device.kind == "emulated"
        for _ in range(
            (_EMULATED_WARM_UPS if is_emulated else warm_ups_for(runs.target.roots)) - 1
        ):
            unlooked(first)
    given = _ran_as_captured(lambda: runs.ran(first), runs.device)
    if start is not None:
        start.restore()
    # On a GPU libraries tune themselves in the first runs. A warm step is behind them.
    is_tuned = runs.device.kind == "emulated" or start is not None
    is_eager_s = is_tuned and not runs.device.was_asked
    if runs.device.meeting.everywhere(is_eager_s):
        return given
    given = runs.ran(first)
    if start is not None:
        start.restore()
    return given


def _ran_as_captured(run: Callable[[], Outcome], device: AnyDevice) -> Outcome:
    """Raises RaisesInCapture where only this path raises; what raises now and then is the user's error."""

    def on_this_path() -> Outcome:
        with user_code(_AS_CAPTURED), device.assuming_capture():
            return run()

    try:
        return on_this_path()
    except UserCodeError as error:
        assert error.__cause__ is not None
        # The state of this call raises, and not the path of a capture. Several ranks find out together.
        if not device.was_asked and not device.meeting.has_others:
            raise error.__cause__ from None
        run()
        try:
            on_this_path()
        except UserCodeError as again:
            raise RaisesInCapture(str(again), again.frames) from again.__cause__
        raise error.__cause__ from None


def warm_ups_for(roots: Mapping[str, object]) -> int:
    """How many steps go before a capture on a GPU.

    Source for DDP: PyTorch's notes on CUDA graphs, 'Usage with DistributedDataParallel'.
    """
    is_parallel = path_of_ddp(roots) is not None
    return _DDP_WARM_UPS if is_parallel else WARM_UPS


def draws_in_rnns(target: Target, device: AnyDevice) -> bool:
    """Whether the step has an RNN whose dropout may draw by cuDNN, on a GPU."""
    walk = Walk(target.roots) if device.kind != "emulated" else ()
    return any(isinstance(one, torch.nn.RNNBase) and one.dropout for _, one, _ in walk)


def check_has_values(target: Target) -> None:
    """Raises `EmulationLimit` for weights on the meta device, on which no step can be run; a template may be there."""
    named = named_tensors(target.roots)
    found = on_meta(named)
    if found and not has_template(named):
        raise EmulationLimit(
            f"{found}, which holds no values to run the step with: give them some, as"
            ' model.to_empty(device="cpu") and an initialization do'
        )


def on_meta(named: Mapping[str, torch.Tensor]) -> str:
    """Which of these tensors are on the meta device, as the beginning of a sentence; "" where none is."""
    empty = [path for path, tensor in named.items() if tensor.is_meta]
    if not empty:
        return ""
    if len(empty) == 1:
        return f"{empty[0]} is on the meta device"
    return f"{empty[0]} and {len(empty) - 1} more tensors are on the meta device"


def has_template(named: Mapping[str, torch.Tensor]) -> bool:
    """Whether weights with values stand beside those without, of which it may take only the structure.

    So does torch.func.functional_call.
    """
    weights = [t for t in named.values() if t.is_floating_point()]
    return any(t.is_meta for t in weights) and not all(t.is_meta for t in weights)
