"""A step's two twins, eager and made faster -> what each left behind, how it differs, and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from graphdoctor.graphs.compare import Gap
from graphdoctor.graphs.footprint import Footprint, gaps_between, keep, stopped_host_state
from graphdoctor.graphs.replayable import Replayable
from graphdoctor.proof.twins import FIRST_SEED, assuming_capture, eager_twin, replay_twin
from graphdoctor.target.target import Inputs, Target
from graphdoctor.values.report import Difference, Location, Verification

Status = Literal["verified", "wrong", "not-verified"]


@dataclass(frozen=True, slots=True)
class TwinTrial:
    """The twins of one verification."""

    target: Target
    captured: Replayable
    batches: Sequence[Inputs]
    exact: bool
    hosts: list[Mapping[str, object]] = field(
        default_factory=list
    )  # Python state after each replay

    def eager(self, *, first_seed: int = FIRST_SEED) -> Iterable[Footprint]:
        return eager_twin(self.target, self.captured, self.batches, first_seed=first_seed)

    def eager_as_captured(self, *, first_seed: int = FIRST_SEED) -> Iterable[Footprint]:
        with assuming_capture(self.captured):
            yield from self.eager(first_seed=first_seed)

    def replays(self) -> Iterable[Footprint]:
        self.hosts.clear()
        for seen in replay_twin(self.captured, self.batches):
            self.hosts.append(seen.host)
            yield seen

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


def kept(footprints: Iterable[Footprint]) -> list[Footprint]:
    """Copies of each, that later steps cannot change."""
    copies: list[Footprint] = []
    for seen in footprints:
        copies.append(keep(seen, copies[-1] if copies else None))
    return copies


def gaps_of(expected: Sequence[Footprint], actual: Iterable[Footprint]) -> list[list[Gap]]:
    """What differs after each step."""
    return [gaps_between(wanted, found) for wanted, found in zip(expected, actual, strict=True)]


def verified(trial: TwinTrial, expected: Sequence[Footprint], note: str = "") -> Verification:
    """The verdict, and which Python state no longer advances."""
    how = "equal eager's bit for bit" if trial.exact else "equal eager's within its own deviation"
    reason = note or f"all {len(trial.captured.footprint.tensors)} tensors {how}"
    stopped: dict[str, None] = {}
    for wanted, host in zip(expected, trial.hosts, strict=True):
        stopped.update(dict.fromkeys(stopped_host_state(wanted.host, host)))
    if stopped:
        shown = ", ".join(list(stopped)[:3]) + (", ..." if len(stopped) > 3 else "")
        reason += (
            f"; host state stops advancing ({shown}): no tensor depended on it in these replays, "
            "but code that reads it later sees old values"
        )
    return trial.verdict("verified", reason)


def wrong(trial: TwinTrial, gaps: Sequence[Sequence[Gap]], *, detail: str = "") -> Verification:
    """The verdict, with the first difference of each replay that has one."""
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


def _difference(captured: Replayable, gap: Gap, replay: int, detail: str) -> Difference:
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


def _writer(captured: Replayable, path: str) -> tuple[tuple[str, Location | None] | None, str]:
    """The captured operator that wrote a tensor last, and a note; only an emulated graph knows."""
    last_writer = getattr(captured.graph, "last_writer", None)
    tensor = captured.footprint.tensors.get(path)
    if last_writer is None or tensor is None:
        return None, ""
    written: tuple[str, Location | None] | None = last_writer(tensor)
    return written, "" if written is not None else "no operator of the graph writes it"
