"""A captured step and fresh inputs -> whether replays compute what eager computes, state included.

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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from graphdoctor.capture.compare import Gap, is_noise
from graphdoctor.capture.digest import digest
from graphdoctor.capture.footprint import Footprint, gaps_between, keep, stopped_host_state
from graphdoctor.capture.static_inputs import InputMismatch
from graphdoctor.capture.twins import ReplayFailed, assuming_capture, eager_twin, replay_twin
from graphdoctor.capture.whole_step import CapturedStep
from graphdoctor.model import Difference, Location, Verification
from graphdoctor.target.state import Snapshot, snapshot
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import is_out_of_memory

Status = Literal["verified", "wrong", "not-verified"]

_FROZEN = (
    "eager itself differs between two runs from the same state, a replay repeats its captured value"
)

_ELSE_WHILE_CAPTURED = "the step does something else while it is captured"


@dataclass(frozen=True, slots=True)
class _Trial:
    """The twins of one verification."""

    target: Target
    captured: CapturedStep
    batches: Sequence[Inputs]
    exact: bool

    def eager(self) -> Iterable[Footprint]:
        return eager_twin(self.target, self.captured, self.batches)

    def eager_as_captured(self) -> Iterable[Footprint]:
        with assuming_capture(self.captured):
            yield from eager_twin(self.target, self.captured, self.batches)

    def replays(self) -> Iterable[Footprint]:
        return replay_twin(self.captured, self.batches)

    def counts(self, gap: Gap) -> bool:
        """Whether a difference means anything: on a real device rounding does not."""
        return self.exact or not gap.is_rounding

    def verdict(self, status: Status, reason: str, *differences: Difference) -> Verification:
        return Verification(
            status=status,
            replays=len(self.batches),
            tensors=len(self.captured.footprint.tensors),
            method="bitwise" if self.exact else "within eager's own deviation",
            reason=reason,
            differences=differences,
        )


def verify_whole_step(
    target: Target,
    captured: CapturedStep,
    batches: Sequence[Inputs],
    *,
    exact: bool,
    now: Snapshot | None = None,
) -> Verification:
    """Replay on each of `batches` and compare with an eager twin, tensor by tensor.

    `exact` asks for equal bits, as the emulated device can; otherwise a difference counts when it
    is larger than a few times what two eager runs differ by, and than rounding. The target's state
    is afterwards what it was before, which is `now` where a snapshot of it exists. Raises
    `UserCodeError` where the eager step fails.
    """
    trial = _Trial(target, captured, batches, exact)
    if not captured.footprint.tensors:
        return trial.verdict("not-verified", "the step leaves no tensor behind to compare")
    before = now if now is not None else snapshot(target.roots)
    try:
        return _verify(trial)
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


def _verify(trial: _Trial) -> Verification:
    if trial.exact:
        eager = [(digest(seen), seen.host) for seen in trial.eager()]
        if [kept for kept, _ in eager] == [digest(seen) for seen in trial.replays()]:
            return _verified(trial, [Footprint({}, {}, host) for _, host in eager])
    expected = _kept(trial.eager())
    gaps = _gaps(expected, trial.replays())
    if not any(gaps):
        return _verified(trial, expected)
    drifts = [gap for step in _gaps(expected, trial.eager()) for gap in step]
    unsteady = {gap.path for gap in drifts if trial.counts(gap)}
    counting = [[gap for gap in step if trial.counts(gap)] for step in gaps]
    real = [[gap for gap in step if gap.path not in unsteady] for step in counting]
    if any(real):
        return _judge_other_path(trial, real)
    return _judge_unsteady(trial, counting, drifts) if any(counting) else _verified(trial, expected)


def _kept(footprints: Iterable[Footprint]) -> list[Footprint]:
    kept: list[Footprint] = []
    for seen in footprints:
        kept.append(keep(seen, kept[-1] if kept else None))
    return kept


def _gaps(expected: Sequence[Footprint], actual: Iterable[Footprint]) -> list[list[Gap]]:
    return [gaps_between(wanted, found) for wanted, found in zip(expected, actual, strict=True)]


def _judge_other_path(trial: _Trial, real: Sequence[Sequence[Gap]]) -> Verification:
    """Whether the step itself takes another path while captured, and how far that leads away."""
    as_captured = _kept(trial.eager_as_captured())
    replayed = _gaps(as_captured, trial.replays())
    gaps = [gap for step in real for gap in step]
    steady = {gap.path for gap in gaps}
    if any(trial.counts(gap) and gap.path in steady for step in replayed for gap in step):
        return _wrong(trial, real)
    largest = _largest_gradient(as_captured)
    far = next((gap for gap in gaps if not _is_other_rounding(gap, largest)), None)
    if far is None:
        return _verified(trial, as_captured, note=_other_path(gaps[0], "no more than rounding"))
    if any(_is_output(gap) and not gap.is_within_half_the_digits for gap in gaps):
        return _wrong(trial, real, detail=_ELSE_WHILE_CAPTURED)
    return trial.verdict("not-verified", _other_path(far, "more than rounding"))


def _is_other_rounding(gap: Gap, largest_gradient: float) -> bool:
    """Another algorithm for the same function, or a gradient whose true value is 0.

    Such a gradient, as of a key's bias in attention, is what rounding leaves of terms that cancel:
    as large as the rounding of the gradients around it, and without one digit of its own.
    """
    if gap.is_within_half_the_digits:
        return True
    is_gradient = gap.is_measurable and gap.path.endswith(".grad")
    return is_gradient and gap.max_abs <= gap.eps * largest_gradient


def _largest_gradient(footprints: Sequence[Footprint]) -> float:
    largest = 0.0
    for seen in footprints:
        for path, tensor in seen.tensors.items():
            if path.endswith(".grad") and tensor.numel() and tensor.is_floating_point():
                largest = max(largest, float(tensor.abs().max()))
    return largest


def _other_path(gap: Gap, how_much: str) -> str:
    return (
        "the step takes another path while it is captured, which replays follow exactly: "
        f"{gap.path} differs from eager's by up to {gap.max_abs:.3g}, {how_much}"
    )


def _is_output(gap: Gap) -> bool:
    return gap.path.startswith("output")


def _judge_unsteady(
    trial: _Trial, gaps: Sequence[Sequence[Gap]], drifts: Sequence[Gap]
) -> Verification:
    """Where eager does not repeat itself: if replays do, they freeze whatever it is that changes.

    A clock, or a generator that no seed reaches, differs in each eager run and never in a replay.
    What the device itself does in a new order each time, as atomic additions, differs in both; then
    a replay may differ from eager by a few times as much as eager from itself.
    """
    replayed = _kept(trial.replays())
    again = [gap for step in _gaps(replayed, trial.replays()) for gap in step]
    if not any(trial.counts(gap) for gap in again):
        return _wrong(trial, gaps, detail=_FROZEN)
    wild = {gap.path for gap in (*drifts, *again) if trial.exact or not gap.is_small}
    loud = [
        [gap for gap in step if trial.exact or not is_noise(gap, (*drifts, *again))]
        for step in gaps
    ]
    if any(beyond := [[gap for gap in step if gap.path not in wild] for step in loud]):
        return _wrong(trial, beyond)
    if any(loud):
        first = next(gap for step in loud for gap in step)
        return trial.verdict(
            "not-verified",
            f"neither eager nor a replay repeats itself from the same state: {first.path} differs",
        )
    return _verified(trial, replayed)


def _verified(trial: _Trial, expected: Sequence[Footprint], note: str = "") -> Verification:
    how = "equal eager's bit for bit" if trial.exact else "equal eager's within its own deviation"
    reason = note or f"all {len(trial.captured.footprint.tensors)} tensors {how}"
    stopped: dict[str, None] = {}
    for wanted in expected:
        stopped.update(dict.fromkeys(stopped_host_state(wanted, trial.captured.footprint)))
    if stopped:
        shown = ", ".join(list(stopped)[:3]) + (", ..." if len(stopped) > 3 else "")
        reason += (
            f"; host state stops advancing ({shown}): no tensor depended on it in these replays, "
            "but code that reads it later sees old values"
        )
    return trial.verdict("verified", reason)


def _wrong(trial: _Trial, gaps: Sequence[Sequence[Gap]], *, detail: str = "") -> Verification:
    differences = tuple(
        _difference(trial.captured, step[0], replay, detail)
        for replay, step in enumerate(gaps, start=1)
        if step
    )
    first = differences[0]
    how = f"by up to {first.max_abs:.3g}"
    if not first.max_abs:
        how = f"({first.detail or 'only in the sign of zeros'})"
    return trial.verdict(
        "wrong", f"{first.tensor} differs from eager's in replay {first.replay} {how}", *differences
    )


def _difference(captured: CapturedStep, gap: Gap, replay: int, detail: str) -> Difference:
    written, note = _writer(captured, gap.path)
    operator, location = written if written is not None else ("", None)
    return Difference(
        tensor=gap.path,
        replay=replay,
        max_abs=gap.max_abs,
        max_rel=gap.max_rel,
        operator=operator,
        location=location,
        detail="; ".join(filter(None, (gap.detail, note, detail))),
    )


def _writer(captured: CapturedStep, path: str) -> tuple[tuple[str, Location | None] | None, str]:
    """The captured operator that wrote a tensor last, and a note; only an emulated graph knows."""
    last_writer = getattr(captured.graph, "last_writer", None)
    tensor = captured.footprint.tensors.get(path)
    if last_writer is None or tensor is None:
        return None, ""
    written: tuple[str, Location | None] | None = last_writer(tensor)
    return written, "" if written is not None else "no operator of the graph writes it"
