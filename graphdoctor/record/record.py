"""Records some iterations of a session as eager runs them, and some as a capture sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import torch

from graphdoctor.device.observe.collectives import is_collective
from graphdoctor.device.observe.known_results import forget_unused_results, prefer_new_results
from graphdoctor.record.held_by_wrappers import with_buckets
from graphdoctor.record.host.host_events import HostState, seen_of_host
from graphdoctor.record.later.later_events import with_later_steps
from graphdoctor.record.operators import Look, observe
from graphdoctor.record.session import FEWEST_COMPARED, Session
from graphdoctor.target.state.snapshot import named_state
from graphdoctor.values.errors import RaisesLater, UserCodeError
from graphdoctor.values.host_events import GraphReplay, ReplacedBetweenSteps
from graphdoctor.values.locations import file_line
from graphdoctor.values.recording import Iteration, OptimizerInfo, Recording


def record(
    session: Session, *, progress: Callable[[str], None], look: Look | None = None
) -> Recording:
    """Run the step in both ways, and once more for what the host draws; the state is put back.

    Where the session's time ends, fewer iterations are recorded than it has.

    `look` sees each eager iteration, with the state as the iteration left it: what it saw before is void where
    it sees as many again.
    """
    prefer_new_results()  # the session's batches come several times; what the step warmed up on, once more
    eager, captured = _both_ways(session, look=look, progress=progress)
    count = min(len(eager), len(captured))
    eager, captured = eager[:count], captured[:count]
    progress("watching what the host does")
    host = (
        *with_later_steps(seen_of_host(session, captured), session, captured),
        *_replaced(session.target.rebound, captured),
    )
    return Recording(
        device=session.device.kind,
        mode=session.target.mode,
        eager=eager,
        captured=captured,
        host=host,
        optimizers=tuple(
            _optimizer(path, root)
            for path, root in session.target.roots.items()
            if isinstance(root, torch.optim.Optimizer)
        ),
        limits=(
            *session.start.limits,
            *_unseen(captured),
            *_cold(eager, captured),
            *_undefined(eager),
            *_between_ranks(captured),
        ),
        lines=session.target.lines,
        unreached=tuple(sorted(session.unreached)),
    )


def _both_ways(
    session: Session, *, look: Look | None, progress: Callable[[str], None]
) -> tuple[tuple[Iteration, ...], tuple[Iteration, ...]]:
    """As eager runs it, and as a capture sees it: the same iterations, where nobody asks whether it is captured."""
    run = partial(record_series, session, progress=progress)
    if not session.device.meeting.everywhere(not session.device.was_asked):
        eager = run(capturing=False, look=look)
        captured = run(capturing=True)
        forget_unused_results()  # of what is drawn at random, and so comes in one run only
        return eager, captured
    captured = run(capturing=True, look=look)
    if not session.device.meeting.everywhere(not session.device.was_asked):  # in a later iteration
        return run(capturing=False, look=look), captured
    return tuple(msgspec.structs.replace(one, capturing=False) for one in captured), captured


def _replaced(
    paths: Sequence[str], captured: Sequence[Iteration]
) -> Iterator[ReplacedBetweenSteps]:
    """Where the step first reads each tensor that the program replaces between its steps."""
    for iteration in captured[:1]:
        storages = {one.storage: one.name for one in iteration.externals if one.name in paths}
        for index, op in enumerate(iteration.ops):
            for name in [storages.pop(u.storage) for u in op.inputs if u.storage in storages]:
                yield ReplacedBetweenSteps(name, index, op.location, op.stack)


def _unseen(captured: tuple[Iteration, ...]) -> Iterator[str]:
    """What the step did that no operator shows, once for each place."""
    events = (event for iteration in captured for event in iteration.events_of(GraphReplay))
    places = dict.fromkeys(event.location for event in events)
    for location in places:
        where = f" ({file_line(location)})" if location else ""
        yield f"The step replays its own CUDA graph{where}: operators in that graph are not recorded."


def _cold(eager: tuple[Iteration, ...], captured: tuple[Iteration, ...]) -> Iterator[str]:
    """Kernels of others that run first inside a capture: they compile, tune or make handles there."""
    known = {op.name for iteration in eager for op in iteration.ops}
    first = {op.name: op for iteration in captured for op in iteration.ops if op.name not in known}
    for name, op in sorted(first.items()):
        if op.is_cuda and not name.startswith(("aten.", "prims.", "profiler.")):
            where = f" ({file_line(op.location)})" if op.location else ""
            yield (
                f"{name}{where} runs only during capture, and no eager warmup runs {name}. The work of its"
                " first call, such as compiling or tuning, happens during capture."
            )


def _undefined(eager: tuple[Iteration, ...]) -> Iterator[str]:
    """Outputs that say nothing: in a comparison NaN equals NaN."""
    paths = {leaf.path for iteration in eager for leaf in iteration.outputs if leaf.has_nan}
    for path in sorted(paths):
        yield (
            f"{path} holds NaN in eager already: a replay that computes NaN there for another"
            " reason would pass as equal."
        )


def _between_ranks(captured: tuple[Iteration, ...]) -> Iterator[str]:
    """What a recording of collectives does not have."""
    if any(is_collective(op) for iteration in captured for op in iteration.ops):
        yield (
            "Predicted times leave out how long ranks wait for one that comes late to a collective; of NCCL's"
            " own checks none is run (docs/ranks.md)."
        )


def record_series(
    session: Session,
    *,
    capturing: bool,
    look: Look | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> tuple[Iteration, ...]:
    """The session's iterations, one after the other."""
    doing = "as in a capture" if capturing else "as eager runs it"
    # Numbers of runs are unique in a session: what one series made is old to the other.
    base = (len(session.batches) if capturing else 0) + 1
    iterations: list[Iteration] = []
    with session.from_the_start(capturing=capturing):
        before = HostState(named_state(session.target.roots), session.device.table)
        indices = range(len(session.batches))
        for index in session.in_time(indices, "steps", fewest=FEWEST_COMPARED):
            progress(f"recording the step {doing} ({index + 1} of {len(session.batches)})")
            try:
                observed = observe(
                    session, index, run=base + index, storages=before.storages, look=look
                )
            except UserCodeError as error:
                if index == 0:
                    raise
                raise RaisesLater(error, index) from error.__cause__
            state = observed.state or named_state(session.target.roots)
            after = HostState(state, session.device.table)
            made = observed.iteration(index, capturing, before.changes(after))
            externals = with_buckets(made.externals, made.ops, session.target.roots)
            iterations.append(msgspec.structs.replace(made, externals=externals))
            before = after
    return tuple(iterations)


def _optimizer(path: str, optimizer: torch.optim.Optimizer) -> OptimizerInfo:
    group: dict[str, Any] = optimizer.param_groups[0] if optimizer.param_groups else {}
    is_tensor = isinstance(group.get("lr"), torch.Tensor)
    return OptimizerInfo(
        path=path,
        class_name=type(optimizer).__name__,
        capturable=bool(group["capturable"]) if "capturable" in group else None,
        fused=bool(group.get("fused")),
        lr_kind="tensor" if is_tensor else "float",
        is_scheduled="initial_lr" in group,  # which schedulers store there
    )
