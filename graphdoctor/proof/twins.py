"""Runs a target and its captured step as twins: what each left behind, how it differs, and a verdict.

Both twins start from the same state, with the same inputs and random numbers. Where eager does not repeat
itself, runs from one state part ever further, through an optimizer that normalises a gradient or a unit that
switches off. Such runs are compared in step: each step starts with what the same eager run left behind.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphdoctor.device.observe.host_calls import answer_as_captured
from graphdoctor.device.observe.meeting import ALONE, Meeting
from graphdoctor.device.observe.patches import Patches
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.compare import Gap, dense_bits, have_same_bits, local_part
from graphdoctor.graphs.footprint import (
    Footprint,
    footprint,
    gaps_between,
    keep,
    stopped_host_state,
)
from graphdoctor.graphs.generator import seed_generators
from graphdoctor.graphs.replayable import Replayable
from graphdoctor.record import Session
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.globals import keeping
from graphdoctor.target.state.saved_tensor import address_of, contents_of, lies_on_cpu
from graphdoctor.target.state.snapshot import NamedState, Snapshot, named_tensors
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import first_line, user_code
from graphdoctor.values.captures import WITHIN_DEVIATION, Difference, Verification
from graphdoctor.values.locations import Location


@dataclass(frozen=True, slots=True)
class EagerRuns:
    """The session's iterations in order, from its start and with its own random numbers.

    Bits are compared with these, so only where eager repeats itself bit for bit, as on the emulated
    device. Replays that start there, with these inputs, must leave the same bits behind.
    """

    session: Session
    digests: list[Digest] = field(default_factory=list)
    hosts: list[Mapping[str, object]] = field(default_factory=list)  # Python state after each

    def look(self, inputs: Inputs, outputs: object, state: NamedState | None = None) -> None:
        """Note what an iteration has just left behind; what was noted of as many before was not eager's."""
        if len(self.digests) == len(self.session.batches):
            self.digests.clear()
            self.hosts.clear()
        seen = footprint(self.session.target.roots, inputs, outputs, named=state)
        self.digests.append(digest(seen))
        self.hosts.append(seen.host)

    def up_to(self, session: Session) -> EagerRuns | None:
        """The same of a session with fewer iterations; None if others were looked at than eager's of these."""
        return replace(self, session=session) if len(self.digests) == len(session.batches) else None

    def are_of(self, start: Snapshot, batches: Sequence[Inputs]) -> bool:
        """Whether an eager twin from this state, on these inputs, would be these very runs."""
        known = self.session.batches
        return (
            start is self.session.start
            and len(self.digests) == len(known) == len(batches)
            and all(one is other for one, other in zip(known, batches, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Digest:
    """What stands for each tensor's bits, with its shape and dtype.

    The copies that comparing element by element would need are several times a model's memory. Where
    digests differ, the tensors themselves are compared.
    """

    tensors: dict[str, tuple[object, ...]]
    values: dict[str, str]


def digest(seen: Footprint) -> Digest:
    """Digest everything but Python state behind the roots."""
    known: dict[tuple[object, ...], tuple[object, ...]] = {}  # one pass for tensors that are one
    with _disable_current_modes(), torch._C.DisableTorchFunction():  # no part of the step
        tensors = {path: _of_tensor(tensor, known) for path, tensor in seen.tensors.items()}
    return Digest(tensors, {path: repr(value) for path, value in seen.values.items()})


def _of_tensor(
    tensor: torch.Tensor, known: dict[tuple[object, ...], tuple[object, ...]]
) -> tuple[object, ...]:
    tensor = local_part(tensor)
    kind = (tuple(tensor.shape), tensor.dtype, str(tensor.device))
    plain = tensor.layout == torch.strided and not tensor.is_nested
    where = (address_of(tensor), tensor.stride(), *kind) if plain else (id(tensor),)
    if tensor.is_meta:
        return kind
    if where not in known:
        bits = dense_bits(tensor).contiguous().reshape(-1)
        known[where] = (*kind, contents_of(bits if lies_on_cpu(bits) else bits.cpu()))
    return known[where]


Recapture = Callable[[], Replayable | Refusal]  # the step, with torch's modes as they are then

FIRST_SEED = 20_000  # any number: each step gets one of its own, the same in every twin
Status = Literal["verified", "wrong", "not-verified"]


class ReplayFailed(Exception):
    """A replay raised; the text says which, and what."""


def eager_twin(
    target: Target,
    captured: Replayable,
    batches: Sequence[Inputs],
    *,
    first_seed: int = FIRST_SEED,
    led_by: Sequence[Footprint] = (),
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Footprint]:
    """Run the step on each batch, from the capture's state; yields what each step left behind.

    `led_by` are copies of what another run left behind after each step, for the next step to start with.
    Each step runs inside `around()`: after the state is restored, which takes forwards that were put in place out.
    """
    captured.start.restore()
    state = memory_of(named_tensors(target.roots).values())
    for index, batch in enumerate(batches):
        inputs = clone_inputs(batch, kept=state)  # the step may write into them
        _seed(first_seed + index)
        with user_code("the step"), around():
            outputs = target.step(*inputs.args, **inputs.kwargs)
        seen = footprint(target.roots, inputs, outputs)
        yield seen
        if led_by:
            _follow(seen, led_by[index])


@contextmanager
def assuming_capture(captured: Replayable) -> Iterator[None]:
    """Let code that asks whether it is being captured believe it, while it runs eagerly."""
    device = getattr(captured.graph, "device", None)
    if device is not None and hasattr(device, "assuming_capture"):
        with device.assuming_capture():
            yield
        return
    with Patches() as patches:
        answer_as_captured(patches)
        yield


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Let kernels add in one order, where torch has such kernels; others add as before."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    fills, by_cudnn = memory.fill_uninitialized_memory, torch.backends.cudnn.deterministic
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what has no such kernel
        try:
            torch.use_deterministic_algorithms(True, warn_only=True)
            memory.fill_uninitialized_memory = False
            torch.backends.cudnn.deterministic = True
            with keeping("deterministic algorithms", "cudnn_deterministic"):
                yield
        finally:
            torch.use_deterministic_algorithms(was_deterministic, warn_only=only_warns)
            memory.fill_uninitialized_memory = fills
            torch.backends.cudnn.deterministic = by_cudnn


def replay_twin(
    captured: Replayable,
    batches: Sequence[Inputs],
    *,
    seeded: bool = True,
    led_by: Sequence[Footprint] = (),
) -> Iterator[Footprint]:
    """Replay on each batch, from the same state; not `seeded`, with the random numbers of that state.

    `led_by` is as for `eager_twin`. No Python runs between replays, so each yields the same tensors with
    new values: those that the captured run left behind. Raises `InputMismatch` for a batch that the graph
    cannot be given.
    """
    captured.start.restore()
    for index, batch in enumerate(batches):
        captured.load(batch)
        if seeded:
            _seed(FIRST_SEED + index)
        try:
            captured.replay()
            torch.cuda.synchronize()
        except RuntimeError as error:
            raise ReplayFailed(f"replay {index + 1} failed: {first_line(error)}") from error
        yield captured.footprint
        if led_by:
            _follow(captured.footprint, led_by[index])


def _follow(seen: Footprint, leader: Footprint) -> None:
    """Give what a step left behind in its state the leader's values, in place."""
    # A tensor that was made in inference mode is written to in that mode only.
    with _disable_current_modes(), torch.inference_mode():
        pairs = [
            (led, tensor)
            for path, tensor in seen.tensors.items()
            if not path.startswith(("output", "inputs"))
            and (led := leader.tensors.get(path)) is not None
            and led.shape == tensor.shape
        ]
        for (led, tensor), is_same in zip(pairs, have_same_bits(pairs), strict=True):
            if not is_same:
                tensor.detach().copy_(led)


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
    # torch.manual_seed() also formats the stack and queues a call for each backend that is not initialized.
    torch.default_generator.manual_seed(seed)
    seed_generators(seed)


@dataclass(frozen=True, slots=True)
class TwinTrial:
    """The twins of one verification."""

    target: Target
    captured: Replayable
    batches: Sequence[Inputs]
    exact: bool
    ran: EagerRuns | None = None  # eager iterations that were looked at when they were recorded
    recapture: Recapture | None = None
    meeting: Meeting = ALONE  # where ranks judge together
    led_by: Sequence[Footprint] = ()  # of the eager run that all others keep in step with
    hosts: list[Mapping[str, object]] = field(
        default_factory=list
    )  # Python state after each replay

    def eager(
        self,
        *,
        first_seed: int = FIRST_SEED,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Iterable[Footprint]:
        return eager_twin(
            self.target,
            self.captured,
            self.batches,
            first_seed=first_seed,
            led_by=self.led_by,
            around=around,
        )

    def in_step(self, expected: Sequence[Footprint]) -> TwinTrial:
        """The same trial, where each step of a run starts with what `expected` says of the one before."""
        return replace(self, led_by=expected)

    def eager_as_captured(self, *, first_seed: int = FIRST_SEED) -> Iterable[Footprint]:
        return self.eager(first_seed=first_seed, around=lambda: assuming_capture(self.captured))

    def replays(self, *, seeded: bool = True) -> Iterable[Footprint]:
        self.hosts.clear()
        runs = replay_twin(self.captured, self.batches, seeded=seeded, led_by=self.led_by)
        for seen in runs:
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
            method="bitwise" if self.exact else WITHIN_DEVIATION,
            reason=reason,
            differences=differences,
            inputs=self.target.tried_on,
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
