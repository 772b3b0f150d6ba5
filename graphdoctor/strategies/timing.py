"""Measures a verified step and eager in turns on a real GPU, with what the profiler saw of both."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from msgspec import Struct

from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.measure.profile import profile_step
from graphdoctor.measure.speed import steps_to_profile
from graphdoctor.measure.wall_clock import Blocks, blocks_for, measure
from graphdoctor.record.session import Session
from graphdoctor.strategies.whole import BuiltStep
from graphdoctor.target.state.snapshot import Snapshot, named_values
from graphdoctor.trace import Trace
from graphdoctor.trace.api import is_graph_launch
from graphdoctor.trace.explain.graphed_steps import estimate_from_trace
from graphdoctor.trace.join import launch_of
from graphdoctor.values.errors import UsageError
from graphdoctor.values.speed import Measurement


class Seen(Struct, frozen=True):
    """One step as the profiler saw it. `busy_share` is of the wall time without a profiler.

    `graphed_share` of its kernels, copies and fills were launched by graphs.
    """

    launches: float
    busy_share: float
    graphed_share: float


class Timed(Struct, frozen=True):
    """Both steps, timed side by side, then profiled one after the other; None: no kernel was seen."""

    measurement: Measurement
    eager: Seen | None
    fast: Seen | None


def time_built(
    session: Session, step: BuiltStep, *, profile: DeviceProfile, measure_s: float
) -> Timed:
    """Time the step as its user calls it, interleaved with eager, for about `measure_s` seconds.

    State is afterwards that of the session's start.
    """
    inputs = session.inputs(0)
    blocks = _blocks(session, step)

    try:
        step.start.restore()
        with _quiet():
            measured = measure(
                lambda: session.call(inputs),
                lambda: step.call(inputs),
                budget_s=measure_s,
                blocks=blocks,
                meeting=session.device.meeting,
            )
        seen = profile_beside(
            session,
            lambda: step.call(inputs),
            start=step.start,
            measured=measured,
            profile=profile,
        )
        return Timed(measured, *seen)
    finally:
        session.start.restore()


def profile_beside(
    session: Session,
    fast: Callable[[], object],
    *,
    start: Snapshot,
    measured: Measurement,
    profile: DeviceProfile,
) -> tuple[Seen | None, Seen | None]:
    """What the profiler sees of the eager step, then of the fast one, each from the same state."""
    inputs = session.inputs(0)
    steps = steps_to_profile(session)
    start.restore()
    eager = _seen(lambda: session.call(inputs), steps, measured.eager_us, profile)
    start.restore()
    found = _seen(fast, steps, measured.graph_us, profile)
    session.start.restore()
    return eager, found


def _blocks(session: Session, step: BuiltStep) -> Blocks:
    """As many calls in a row as are known to work: a counting step ends at the end of its memory."""
    few = Blocks(most_calls=len(session.batches), prepare=step.start.restore)
    if _counts_on_host(session):
        return few
    step.load(session.inputs(0))
    return blocks_for(step, verified_calls=len(session.batches))


def _counts_on_host(session: Session) -> bool:
    """Whether one eager step moves a number behind the roots, such as a position in a cache."""
    with session.start.around():
        before = named_values(session.target.roots)
        session.call(session.inputs(0))
        return named_values(session.target.roots) != before


def _seen(
    run: Callable[[], object], steps: int, wall_us: float, profile: DeviceProfile
) -> Seen | None:
    """Profile a step that takes `wall_us` without a profiler."""
    trace = profile_step(run, steps=steps).trace
    try:
        found = estimate_from_trace(trace, wall_us, profile)
    except UsageError:
        return None
    share = min(1.0, found.device_busy_us.mid / wall_us)
    return Seen(float(found.launches), share, graphed_share(trace))


def graphed_share(trace: Trace) -> float:
    """The share of a trace's kernels, copies and fills that graphs launched; 0.0 of none."""
    calls = launch_of(trace)
    calls = calls[calls >= 0]
    if not len(calls):
        return 0.0
    by_graph = trace.named(trace.calls.take(calls), is_graph_launch)
    return float(np.mean(by_graph))


def break_even_calls(prepare_s: float, measured: Measurement) -> int | None:
    """After how many steps the preparation has paid; None where the step is not faster."""
    saved_s = (measured.eager_us - measured.graph_us) / 1e6
    if measured.word != "faster" or saved_s <= 0:
        return None
    return math.ceil(prepare_s / saved_s)


@contextmanager
def _quiet() -> Iterator[None]:
    """End what compilers left running, and keep what they left lying out of garbage collections.

    Inductor's workers start up in the background and go on long after the last kernel is compiled:
    beside them eager took twice its time on an H200.
    """
    # Where inductor was never imported there are none; a later compilation starts new ones.
    pools = sys.modules.get("torch._inductor.async_compile")
    end = getattr(pools, "shutdown_compile_workers", None)
    if end is not None:
        end()
    gc.collect()
    is_ours = gc.get_freeze_count() == 0  # else the user froze something, which stays frozen
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()
