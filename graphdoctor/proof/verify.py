"""Decides on fresh inputs whether replays compute what eager computes, state included.

Both twins start from the state that the capture was made from, get the same batches, and draw the
same random numbers. Eager runs first; then every tensor of that state gets its contents back, at
its old address, and the graph is replayed. Python does not run in a replay, so what the captured
run left in Python (attributes that it rebound, counters that it advanced) holds for all replays,
and the tensors that it left there are the ones that are compared.

Python state that eager advances and a replay does not is no difference by itself: a count of steps
that nobody reads makes no answer wrong. `reason` tells of it, for code outside the step that reads
it, and because it may reach a tensor in a later replay. Once it does, that tensor differs.

Libraries take other paths while they are captured, and round differently there: such a replay
equals an eager twin that believes it is captured, and half its digits agree with plain eager's.
Where the other path draws other random numbers, nothing can be said of what these reach, unless it is the
kernel of attention that draws them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from msgspec import structs
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from graphdoctor.device.observe.dispatch import DispatchMode
from graphdoctor.device.observe.meeting import ALONE, Meeting
from graphdoctor.device.observe.operators import facts_of, parts_in_order
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.compare import Gap, is_as_far, is_noise
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.graphs.generator import generator_state
from graphdoctor.graphs.replayable import Replayable
from graphdoctor.graphs.static_inputs import InputMismatch
from graphdoctor.operators import call_draws
from graphdoctor.proof.other_rounding import OtherRounding
from graphdoctor.proof.twins import (
    FIRST_SEED,
    EagerRuns,
    Recapture,
    ReplayFailed,
    TwinTrial,
    deterministic_algorithms,
    digest,
    gaps_of,
    kept,
    verified,
    wrong,
)
from graphdoctor.target.state.globals import KERNELS_OF_ATTENTION, keeping
from graphdoctor.target.state.snapshot import Snapshot, snapshot
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import is_out_of_memory
from graphdoctor.values.captures import ON_PATH_OF_CAPTURE, WITHIN_DEVIATION, Verification
from graphdoctor.values.errors import UserCodeError

_EAGER_RERUNS = 2
_FACTOR = 4.0  # beyond what was seen; the eager runs are few
_OPTIMIZER_STATE = re.compile(r"\.state\[.*\]\.(\w+)$")

_FROZEN = (
    "eager itself differs between two runs from the same state, a replay repeats its captured value"
)


def verify_whole_step(
    target: Target,
    captured: Replayable,
    batches: Sequence[Inputs],
    *,
    exact: bool,
    now: Snapshot | None = None,
    judge: Callable[[TwinTrial], Verification] | None = None,
    ran: EagerRuns | None = None,
    meeting: Meeting = ALONE,
    recapture: Recapture | None = None,
) -> Verification:
    """Replay on each of `batches` and compare with an eager twin, tensor by tensor.

    `exact` asks for equal bits, as the emulated device can; otherwise a difference counts when it
    is larger than a few times what two eager runs differ by, and than rounding. The target's state
    is afterwards what it was before, which is `now` where a snapshot of it exists. `judge`
    compares the twins in another way. `ran` are eager runs that need not be run again where the graph
    was captured from their state. `meeting` is that of the step's device:
    ranks judge together. `recapture` captures the step once more, with the modes of torch as they are then.
    Raises `UserCodeError` where the eager step fails.
    """
    usable = ran if ran is not None and exact and ran.are_of(captured.start, batches) else None
    trial = TwinTrial(target, captured, batches, exact, usable, recapture, meeting)
    before = now if now is not None else snapshot(target.roots)
    try:
        found = judge(trial) if judge is not None else _verify(trial)
        if captured.footprint.tensors:
            return found
        return trial.verdict("not-verified", "the step leaves no tensor behind to compare")
    except InputMismatch as mismatch:
        return trial.verdict("not-verified", str(mismatch))
    except ReplayFailed as failure:
        # What an emulated replay cannot do is the emulation's fault; a real one's is the graph's.
        return trial.verdict("not-verified" if exact else "wrong", str(failure))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return trial.verdict(
            "not-verified", "the two twins' tensors do not fit into memory together"
        )
    finally:
        before.restore()


def _verify(trial: TwinTrial) -> Verification:
    hosts = _of_same_bits(trial) if trial.exact else None
    if trial.meeting.everywhere(hosts is not None):
        return verified(trial, [Footprint({}, {}, host) for host in hosts or ()])
    expected = kept(trial.eager())
    gaps = gaps_of(expected, trial.replays())
    if trial.meeting.everywhere(not any(gaps)):
        return verified(trial, expected)
    drifts = list(_drifts(trial, expected))
    if not trial.meeting.everywhere(trial.exact or not drifts):
        trial = trial.in_step(expected)
        drifts = list(_drifts(trial, expected))
        moved = max((gap.max_abs for gap in drifts if _kind(gap.path) == "gradient"), default=0.0)
        rounding = OtherRounding(expected, noise=_FACTOR * moved)
        gaps = gaps_of(expected, rounding.aligned(trial.replays()))
    unsteady = {gap.path for gap in drifts if trial.counts(gap)}
    noise = Noise(() if trial.exact else drifts)
    counting = [
        [
            gap
            for gap in step
            if trial.counts(gap) and (gap.path in unsteady or not noise.explains(gap))
        ]
        for step in gaps
    ]
    real = [[gap for gap in step if gap.path not in unsteady] for step in counting]
    if not trial.meeting.agree(str((any(real), any(counting)))):
        # What is looked at next would run the step on some ranks only.
        return wrong(trial, counting) if any(counting) else verified(trial, expected)
    if any(real):
        # A tensor that was equal in the few eager runs may differ from run to run, as others do.
        found = _judge_in_one_order(trial, expected, real, drifts) if unsteady else None
        if found is not None and found.status == "verified":
            return found
        return judge_other_path(trial, expected, real)
    if any(counting):
        return _judge_unsteady(trial, expected, counting, drifts)
    return verified(trial, expected)


def _of_same_bits(trial: TwinTrial) -> list[Mapping[str, object]] | None:
    """Eager's Python state after each step, if the replays leave the same bits behind; else None.

    Eager is not run where it ran already. A path that draws other random numbers while it is captured
    then leads replays away from it for good, which twins that are seeded anew in each step tell apart.
    """
    if trial.ran is not None:
        replayed = [digest(seen) for seen in trial.replays(seeded=False)]
        return trial.ran.hosts if replayed == trial.ran.digests else None
    eager = [(digest(seen), seen.host) for seen in trial.eager()]
    replayed = [digest(seen) for seen in trial.replays()]
    return [host for _, host in eager] if replayed == [bits for bits, _ in eager] else None


def _drifts(trial: TwinTrial, expected: Sequence[Footprint]) -> Iterator[Gap]:
    """How eager differs from itself; one more run would miss what moves in every other run."""
    for _ in range(1 if trial.exact else _EAGER_RERUNS):
        for step in gaps_of(expected, trial.eager()):
            yield from step


def _judge_unsteady(
    trial: TwinTrial,
    expected: Sequence[Footprint],
    gaps: Sequence[Sequence[Gap]],
    drifts: Sequence[Gap],
) -> Verification:
    """Where eager does not repeat itself: if replays do, they freeze whatever it is that changes.

    A clock, or a generator that no seed reaches, differs in each eager run and never in a replay.
    What the device itself does in a new order each time, as atomic additions, differs in both; then
    a replay may differ from eager by a few times as much as eager from itself.
    """
    replayed = kept(trial.replays())
    again = [gap for step in gaps_of(replayed, trial.replays()) for gap in step]
    if not any(trial.counts(gap) for gap in again):
        return wrong(trial, gaps, detail=_FROZEN)
    wild = {gap.path for gap in (*drifts, *again) if trial.exact or not gap.is_small}
    noise = Noise((*drifts, *again))
    loud = [[gap for gap in step if trial.exact or not noise.explains(gap)] for step in gaps]
    if any(loud) and (found := _judge_in_one_order(trial, expected, loud, drifts)) is not None:
        return found
    if any(beyond := [[gap for gap in step if gap.path not in wild] for step in loud]):
        return wrong(trial, beyond)
    if any(loud):
        first = next(gap for step in loud for gap in step)
        return trial.verdict(
            "not-verified",
            f"neither eager nor a replay repeats itself from the same state: {first.path} differs",
        )
    return verified(trial, expected)


_IN_ONE_ORDER = (
    "eager does not repeat itself from the same state: with deterministic algorithms, replays equal eager's, and as the"
    " step is they differ from eager by no more than eager from itself"
)


def _judge_in_one_order(
    trial: TwinTrial,
    expected: Sequence[Footprint],
    loud: Sequence[Sequence[Gap]],
    drifts: Sequence[Gap],
) -> Verification | None:
    """Where orders of addition lead eager far away from itself: by kernels that add in one order.

    The step is captured once more, with torch's deterministic algorithms, and its replays have to equal eager under
    them: what a capture freezes is of the code and not of the kernels. A learning rate that stays what it was
    differs there by more than noise. As the step is, a tensor may differ in replays as far as it, or another of its
    kind in relation to its values, does in runs of eager. None where that shows nothing: on several ranks, or without
    such kernels.
    """
    if trial.recapture is None or trial.meeting.has_others:
        return None
    measured = [drift for drift in drifts if drift.is_measurable]
    relative, farthest = _largest_shares(measured), dict[str, float]()
    for drift in measured:
        farthest[drift.path] = max(drift.max_abs, farthest.get(drift.path, 0.0))
    for gap in (each for step in loud for each in step):
        of_kind = relative.get(_kind(gap.path), 0.0) * gap.scale
        if not gap.is_measurable or not is_as_far(gap, max(of_kind, farthest.get(gap.path, 0.0))):
            return None
    with deterministic_algorithms():
        try:
            made = trial.recapture()
            if isinstance(made, Refusal):
                return None
            again = replace(trial, captured=made, ran=None, recapture=None, led_by=(), hosts=[])
            try:
                found = _verify(again)
            finally:
                made.release()
        except UserCodeError:  # not with these algorithms
            return None
    if found.status != "verified":
        return found if found.status == "wrong" else None
    found = verified(trial, expected, note=_IN_ONE_ORDER)
    return structs.replace(found, method=WITHIN_DEVIATION)


class Noise:
    """What the drifts of eager from itself explain. Without drifts, nothing.

    A step with operators that add in a new order each time (atomic additions) drifts a little in
    every tensor behind them, in some runs here and in others there. So a tensor that stood still in
    the few eager runs there were may move in a replay: by about as much as others of its kind moved.
    """

    def __init__(self, drifts: Iterable[Gap]) -> None:
        self._drifts = tuple(drifts)
        self._relative = _largest_shares(each for each in self._drifts if each.is_small)

    def explains(self, gap: Gap) -> bool:
        """Whether this tensor drifted by so much itself, or others of its kind by about as much.

        The latter holds only for what leaves half the digits alone: a difference of another origin,
        such as a frozen learning rate, must not hide behind tensors that drift far.
        """
        if is_noise(gap, self._drifts):
            return True
        limit = _FACTOR * self._relative.get(_kind(gap.path), 0.0) * gap.scale
        return gap.is_within_half_the_digits and gap.max_abs <= limit


def _largest_shares(drifts: Iterable[Gap]) -> dict[str, float]:
    """By kind of tensor, the largest drift in relation to the tensor's values."""
    shares: dict[str, float] = {}
    for drift in drifts:
        kind, share = _kind(drift.path), drift.max_abs / (max(drift.scale, drift.max_abs) or 1.0)
        shares[kind] = max(share, shares.get(kind, 0.0))
    return shares


def _kind(path: str) -> str:
    """Gradients, each sort of optimizer state, outputs, and all other state: they move alike."""
    if path.endswith(".grad"):
        return "gradient"
    sort = _OPTIMIZER_STATE.search(path)
    if sort is not None:
        return sort[1]
    return "output" if path.startswith("output") else "state"


_ANOTHER_PATH = "the step takes another path while it is captured"
_ELSE_WHILE_CAPTURED = "the step does something else while it is captured"
_OTHER_NUMBERS = (
    "the step takes another path while it is captured, which draws other random numbers: its answers "
    "cannot be compared with eager's; replays follow that path exactly"
)

_ONE_KERNEL = (
    "the step takes another path while it is captured, which draws other random numbers: replays equal eager's "
    "on that path, and with attention by one kernel, which draws alike on both, eager's two paths agree"
)


def judge_other_path(
    trial: TwinTrial, expected: Sequence[Footprint], real: Sequence[Sequence[Gap]]
) -> Verification:
    """Whether the step itself takes another path while captured, and how far that leads away.

    That path may draw other random numbers: two kernels for one function, as for attention, draw differently
    for their dropout. From the same seed they drop other elements, and no comparison of values distinguishes
    them from kernels for two functions. So both paths run once more in eager with attention by one kernel,
    which draws the same whatever its mask is: then they have to agree. `real` are
    the gaps between `expected`, which eager left behind, and the replays.
    """
    as_captured = kept(trial.eager_as_captured())
    replayed = gaps_of(as_captured, trial.replays())
    steady = {gap.path for step in real for gap in step}
    follows = not any(trial.counts(gap) and gap.path in steady for step in replayed for gap in step)
    if not trial.meeting.everywhere(follows):
        return wrong(trial, real)
    rounding = OtherRounding(expected)
    gaps = gaps_of(expected, rounding.aligned(trial.replays()))
    far = _among(steady, rounding.beyond(gaps))
    if trial.meeting.everywhere(not any(far)):
        first = next(gap for step in real for gap in step)
        note = _other_path(trial, first, "no more than rounding")
        return verified(trial, as_captured, note=note)
    random = reached_by_other_numbers(trial, expected, as_captured)
    far = _without(far, random)
    if trial.meeting.everywhere(not any(far)):
        return _judge_by_one_kernel(trial, as_captured, steady)
    return _judge_far(trial, _without(real, random), far)


def _judge_far(
    trial: TwinTrial, real: Sequence[Sequence[Gap]], far: Sequence[Sequence[Gap]]
) -> Verification:
    """By what the random numbers that the other path draws cannot explain."""
    gaps = [gap for step in far for gap in step]
    if not gaps:
        return trial.verdict("not-verified", _OTHER_NUMBERS)
    if any(gap.is_in_output for gap in gaps):
        return wrong(trial, real, detail=_ELSE_WHILE_CAPTURED)
    return trial.verdict("not-verified", _other_path(trial, gaps[0], "more than rounding"))


def _judge_by_one_kernel(
    trial: TwinTrial, as_captured: Sequence[Footprint], steady: Set[str]
) -> Verification:
    """By eager's two paths, with attention by the kernel that takes any mask, and draws alike for each.

    Where that is not why they draw otherwise, they still do, and nothing is known. `as_captured` is what
    eager left behind on the path of the capture, with the kernels that the step takes: the replays did, too.
    """
    eager, captured = _Draws(), _Draws()
    try:
        with sdpa_kernel(SDPBackend.MATH), keeping(*KERNELS_OF_ATTENTION):
            expected = kept(eager.noted(trial.eager()))
            rounding = OtherRounding(expected)
            gaps = gaps_of(expected, rounding.aligned(captured.noted(trial.eager_as_captured())))
        draws_alike = all(eager.alike(captured))
    except UserCodeError:  # not with this kernel: it takes more memory, and no nested tensors
        draws_alike = False
    if not trial.meeting.everywhere(draws_alike):
        return trial.verdict("not-verified", _OTHER_NUMBERS)
    far = _among(steady, rounding.beyond(gaps))
    if trial.meeting.everywhere(not any(far)):
        found = verified(trial, as_captured, note=_ONE_KERNEL)
        return structs.replace(found, path=ON_PATH_OF_CAPTURE)
    return _judge_far(trial, far, far)


def _among(paths: Set[str], gaps: Sequence[Sequence[Gap]]) -> list[list[Gap]]:
    return [[gap for gap in step if gap.path in paths] for step in gaps]


def _without(gaps: Sequence[Sequence[Gap]], paths: Sequence[Set[str]]) -> list[list[Gap]]:
    return [
        [gap for gap in step if gap.path not in left_out]
        for step, left_out in zip(gaps, paths, strict=True)
    ]


def _other_path(trial: TwinTrial, gap: Gap, how_much: str) -> str:
    path = getattr(trial.captured.graph, "other_path", "") or _ANOTHER_PATH
    how = f"differs from eager's by up to {gap.max_abs:.3g}, {how_much}"
    return f"{path}, which replays follow exactly: {gap.path} {how}"


_OTHER_SEED = 2 * FIRST_SEED  # any other number
_Draw = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Draws:
    """What each step of a run drew, and where that left the generator: a custom operator's show there only."""

    of_steps: list[tuple[tuple[_Draw, ...], torch.Tensor]] = field(default_factory=list)

    def noted(self, run: Iterable[Footprint]) -> Iterator[Footprint]:
        """The run, which is to end before another begins: the log sees all that runs meanwhile."""
        with _DrawLog() as log:
            for seen in run:
                self.of_steps.append((log.taken(), generator_state()))
                yield seen

    def alike(self, other: _Draws) -> list[bool]:
        """For each step, whether both drew the same numbers in it."""
        return [
            mine == theirs and torch.equal(one, two)
            for (mine, one), (theirs, two) in zip(self.of_steps, other.of_steps, strict=True)
        ]


def reached_by_other_numbers(
    trial: TwinTrial, expected: Sequence[Footprint], as_captured: Sequence[Footprint]
) -> list[Set[str]]:
    """The paths, after each step, whose values follow from random numbers that eager does not draw.

    They are those that come out otherwise under another seed, on either path, from the first step on
    in which both paths do not draw the same in the same order. What an earlier step drew otherwise
    may lie in the state.
    """
    eager, captured = _Draws(), _Draws()
    moved = _moved(trial, expected, eager.noted(trial.eager(first_seed=_OTHER_SEED)))
    run = captured.noted(trial.eager_as_captured(first_seed=_OTHER_SEED))
    also_moved = _moved(trial, as_captured, run)
    found: list[Set[str]] = []
    parted = False
    for is_alike, one, other in zip(eager.alike(captured), moved, also_moved, strict=True):
        parted = parted or not is_alike
        found.append(one | other if parted else frozenset())
    return found


def _moved(
    trial: TwinTrial, known: Sequence[Footprint], run: Iterable[Footprint]
) -> list[Set[str]]:
    return [{gap.path for gap in step if trial.counts(gap)} for step in gaps_of(known, run)]


class _DrawLog(DispatchMode):
    """Notes each operator that draws random numbers: its name, its numbers, its tensors' shapes."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._draws: list[_Draw] = []

    def taken(self) -> tuple[_Draw, ...]:
        """What was drawn since the last time."""
        drawn = tuple(self._draws)
        self._draws.clear()
        return drawn

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if types and any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # it is made of plain tensors: their operators will come here
        named = dict(kwargs or {})
        facts = facts_of(func)
        if facts.is_composite:
            with self:  # its parts come here: which kernels they choose is what counts
                return parts_in_order(func)(*args, **named)
        if facts.is_random and call_draws(facts.name, args, named):
            self._draws.append((facts.name, _plain(args), _plain(tuple(sorted(named.items())))))
        return func(*args, **named)


def _plain(value: Any) -> object:
    """A value that is equal for calls that draw the same numbers."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        return value
    return type(value).__name__
