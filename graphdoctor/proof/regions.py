"""Captures each region, and decides whether its replay computes what eager does.

The first iteration that runs a region is kept as a tape, and on a GPU captured from there. In every later
iteration that runs it, the memory that the region reads is copied before its operators run, and what it wrote
afterwards; then the graph gets the former, is replayed, and must produce the latter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from graphdoctor.device.observe.known_results import prefer_new_results
from graphdoctor.device.observe.storages import Geometry
from graphdoctor.device.observe.tape import Tape
from graphdoctor.graphs.capture import record_graph
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.compare import Gap, gap_between, is_as_far, is_noise
from graphdoctor.graphs.generator import generator_state, set_generator_state
from graphdoctor.graphs.region_run import Part, RegionRun, RegionWatcher
from graphdoctor.partition import PlannedRegion
from graphdoctor.record.session import FEWEST_COMPARED, Session
from graphdoctor.target.state.saved_tensor import copied_when_written, is_same_memory
from graphdoctor.target.user_code import first_line
from graphdoctor.values.captures import (
    WITHIN_DEVIATION,
    CaptureOutcome,
    Difference,
    Scope,
    Verification,
)
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration

_STRAYS = "its operators, run again without a graph, differ from the step by as much"


def verify_regions(
    session: Session,
    captured: Sequence[Iteration],
    regions: Sequence[PlannedRegion],
    *,
    exact: bool | None = None,
) -> tuple[CaptureOutcome, ...]:
    """Capture each region and replay it on the other iterations' values.

    `captured` are the iterations that they were found in; they are run again, in the same order
    and from the same state, and must repeat themselves operator by operator. `exact`: a tape stands
    for the graph, as on the emulated device.
    """
    exact = session.device.kind == "emulated" if exact is None else exact
    tried_on = session.target.tried_on
    trials = [_Trial(planned, exact=exact, tried_on=tried_on) for planned in regions]
    with session.from_the_start(capturing=True):
        for iteration in session.in_time(captured, "regions", fewest=FEWEST_COMPARED):
            prefer_new_results()  # what the iterations before had computed does not come again
            _watch(session, iteration, [t for t in trials if t.planned.ops_in(iteration.index)])
    return tuple(trial.outcome(_doubt(trial.planned, captured)) for trial in trials)


def _watch(session: Session, iteration: Iteration, trials: Sequence[_Trial]) -> None:
    table, one = session.device.table, session.device.kind == "emulated"
    tapes = [Tape(table, one_generator=one) if t.first is None else None for t in trials]
    runs = list(map(RegionRun, tapes))
    spans = [trial.planned.ops_in(iteration.index) for trial in trials]
    watcher = RegionWatcher(table, iteration, spans, runs)
    inputs = session.inputs(iteration.index)
    with session.device.observed_by(watcher):
        session.call(inputs)
    scratch = _scratch_of([trial.first for trial in trials if trial.first is not None])
    for trial, run in zip(trials, runs, strict=True):
        trial.add(run, repeated=watcher.repeated, scratch=scratch)


def _doubt(planned: PlannedRegion, captured: Sequence[Iteration]) -> str:
    """Why the emulated result of a region may not be a GPU's, or ""."""
    ops = (each.ops[index] for each in captured for index in planned.ops_in(each.index))
    return next((op.fallback for op in ops if op.fallback is not None), "")


class _Trial:
    """One region's tape, and what its replays showed."""

    def __init__(self, planned: PlannedRegion, *, exact: bool, tried_on: str) -> None:
        self.planned = planned
        self.first: RegionRun | None = None
        self._exact, self._tried_on = exact, tried_on
        self._replay: Callable[[], object] | None = None
        self._replays = 0
        self._tensors = 0
        self._reason = ""  # why it is not verified
        self._refused: Refusal | None = None
        self._differences: list[Difference] = []

    def add(self, run: RegionRun, *, repeated: bool, scratch: set[int]) -> None:
        """Take the first run as the tape, and check it against every later one.

        `scratch`: where memory lies that may hold anything afterwards.
        """
        if not repeated:
            self._reason = "the step did not repeat itself when it was run again"
        elif run.reason:
            self._reason = run.reason
        elif self.first is None:
            self.first = run
        elif run.pattern != self.first.pattern:
            self._reason = "its tensors share memory differently in other iterations"
        elif run.sizes != self.first.sizes:
            self._reason = "its tensors lie in memory of another size in other iterations"
        elif self._refused is None:
            self._try(self.first, run, scratch)

    def _try(self, first: RegionRun, run: RegionRun, scratch: set[int]) -> None:
        """Replay on another iteration's values; all memory but scratch is afterwards as it was before."""
        # Below the emulation: contents are compared, wherever they are taken to lie.
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            generator = generator_state()
            changing = _changing(first, run)
            storages = {slot: first.storages[slot] for slot in changing}
            kept = {s: each.clone() for s, each in storages.items() if each._cdata not in scratch}

            def prepare() -> None:
                for slot in changing & run.before.keys():
                    if common := min(first.storages[slot].nbytes(), run.before[slot].nbytes()):
                        part = Geometry(0, (common,), (1,), torch.uint8)
                        part.of(first.storages[slot]).copy_(part.of(run.before[slot]))
                if run.generator is not None:
                    set_generator_state(run.generator)

            try:
                self._replay_and_compare(first, run, prepare)
            finally:
                set_generator_state(generator)
                for slot, contents in kept.items():
                    first.storages[slot].copy_(contents)

    def _replay_and_compare(
        self, first: RegionRun, run: RegionRun, prepare: Callable[[], None]
    ) -> None:
        assert first.tape is not None
        if self._replay is None:
            # Running the tape again is what the emulated device takes for a graph.
            made = first.tape.replay if self._exact else _graph_of(first.tape, prepare)
            if isinstance(made, Refusal):
                self._refused = made
                return
            self._replay = made
        prepare()
        try:
            self._replay()
        except RuntimeError as error:
            if not self._exact:
                raise
            # An operator whose size follows from values that the emulated device knows nothing of.
            self._reason = f"its replay failed: {first_line(error)}"
            return
        self._replays += 1
        found = _results(first, run)
        self._tensors = max(self._tensors, len(found.keys() - first.unwritten))
        gaps = {part: gap_between("", run.after[part], found[part]) for part in found}
        wrong = self._told(first, {part: gap for part, gap in gaps.items() if gap is not None})
        if wrong and not self._exact:
            prepare()
            first.tape.replay()  # the same operators without a graph: eager's own deviation
            wrong, strays = _beyond_noise(wrong, run, _results(first, run))
            if strays:
                self._reason = _STRAYS
        for part, gap in list(wrong.items())[:1]:
            self._differences.append(self._difference(first.writers[part[0]], gap))

    def _told(self, first: RegionRun, wrong: dict[Part, Gap]) -> dict[Part, Gap]:
        """Without the memory of torch.empty that no operator wrote: it holds whatever was there.

        On a GPU a kernel that is no operator may have written it, of which the tape knows nothing.
        """
        told = {part: gap for part, gap in wrong.items() if part not in first.unwritten}
        if len(told) < len(wrong) and not self._exact:
            self._reason = "no operator wrote all of the memory that torch.empty made in it"
        return told

    def _difference(self, writer: tuple[str, Location | None], gap: Gap) -> Difference:
        operator, location = writer
        return Difference(
            tensor=f"the result of {operator}",
            replay=self._replays,
            max_abs=gap.max_abs,
            max_rel=gap.max_rel,
            operator=operator,
            location=location,
            detail=gap.detail,
        )

    def outcome(self, doubt: str) -> CaptureOutcome:
        """The region's row in the report. `doubt`: why the emulated values may not be a GPU's."""
        region = self.planned.region
        scope = Scope(region.name)
        if self._refused is not None:
            return self._refused.outcome(scope)
        return CaptureOutcome(
            scope=str(scope),
            status="captured",
            operators=region.operators,
            verification=self._verification(doubt),
        )

    def _verification(self, doubt: str) -> Verification:
        reason = self._reason or doubt
        if not reason and self._replays == 0:
            reason = "it ran in only one of the recorded iterations"
        if not reason and self._tensors == 0:
            reason = "nothing that it writes is still alive at its end to compare"
        if self._differences:
            reason = f"replay {self._differences[0].replay} computed something other than eager did"
        status: Literal["verified", "wrong", "not-verified"] = (
            "not-verified" if reason else "verified"
        )
        return Verification(
            status="wrong" if self._differences else status,
            replays=self._replays,
            tensors=self._tensors,
            method="bitwise" if self._exact else WITHIN_DEVIATION,
            reason=reason,
            differences=tuple(self._differences),
            inputs=self._tried_on,
        )


def _scratch_of(firsts: Sequence[RegionRun]) -> set[int]:
    """The addresses of memory that regions made and only these runs still hold: nobody can look at it.

    Each replay is given what it reads, also where another region's replay has left something else.
    """
    held: Counter[int] = Counter()
    for first in firsts:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            held.update(first.references)
    # In Python a storage is one object, which all runs hold.
    held.update({storage._cdata for first in firsts for storage in first.storages.values()})
    own = (each.storages[slot] for each in firsts for slot in each.made & each.storages.keys())
    made = {storage._cdata for storage in own}
    return {address for address in made if torch._C._storage_Use_Count(address) <= held[address]}


def _graph_of(tape: Tape, prepare: Callable[[], None]) -> Callable[[], object] | Refusal:
    """The tape's operators in a real graph, and how to replay it.

    `prepare` gives the region's memory its contents: the warm-up runs on them, and changes them.
    """

    def warm_up() -> None:
        prepare()
        tape.replay()

    made = record_graph(tape.replay, torch.cuda.Stream(), warm_up=warm_up)
    if isinstance(made, Refusal):
        return made
    graph = made.graph

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay


def _changing(first: RegionRun, run: RegionRun) -> set[int]:
    """The slots that a replay on the other run's values changes: what it writes, and what differs before it.

    Weights do neither.
    """
    others = {
        slot
        for slot, contents in run.before.items()
        if not is_same_memory(first.storages[slot], contents)
    }
    return (first.written_slots & first.storages.keys()) | others


def _results(first: RegionRun, run: RegionRun) -> dict[Part, torch.Tensor]:
    """What the replayed memory holds where the other run left something behind.

    What the region made itself is copied only when it is written again.
    """
    return {
        (slot, geometry): (copied_when_written if slot in first.made else torch.clone)(
            geometry.of(first.storages[slot])
        )
        for slot, geometry in run.after
        if slot in first.storages
    }


def _beyond_noise(
    gaps: dict[Part, Gap], run: RegionRun, eager: dict[Part, torch.Tensor]
) -> tuple[dict[Part, Gap], bool]:
    """What the graph alone explains, and whether more was left out than noise.

    `eager` is what the same operators leave without a graph. Where that is as far away, and by more than noise, nothing
    is known of the graph. Seen with the backward of cuDNN's RNN (NVIDIA H100, torch 2.11, 2026-11-28).
    """
    kept, strays = {}, False
    for part, gap in gaps.items():
        own = gap_between("", run.after[part], eager[part])
        if gap.is_rounding or is_noise(gap, [own] if own is not None else []):
            continue
        if own is not None and own.is_measurable and is_as_far(gap, own.max_abs):
            strays = True
        else:
            kept[part] = gap
    return kept, strays
