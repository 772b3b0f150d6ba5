"""A session -> its recording: some iterations as eager runs them, and as a capture sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch

from graphdoctor.device.observe.collectives import is_collective
from graphdoctor.device.observe.known_results import forget_unused_results, prefer_new_results
from graphdoctor.device.observe.meeting import MEETING
from graphdoctor.device.observe.operators import Observer
from graphdoctor.device.observe.storages import StorageTable, parts_of
from graphdoctor.record.held_by_wrappers import gathered_parameters, with_buckets
from graphdoctor.record.host_events import host_events
from graphdoctor.record.operators import OperatorObserver
from graphdoctor.record.python_state import HostState
from graphdoctor.record.session import Session
from graphdoctor.record.trials import Trials
from graphdoctor.target.state.snapshot import has_memory
from graphdoctor.target.state.tree import input_leaves, leaves
from graphdoctor.target.target import Inputs
from graphdoctor.values.locations import file_line
from graphdoctor.values.recording import (
    Iteration,
    Leaf,
    OptimizerInfo,
    Recording,
    Sample,
    StateChange,
)

Look = Callable[[Inputs, object], None]  # at an iteration's inputs and outputs, when it has run


def record(
    session: Session, *, progress: Callable[[str], None], look: Look | None = None
) -> Recording:
    """Run the step in both ways, and once more for what the host draws; the state is put back.

    `look` sees each eager iteration, with the state as the iteration left it.
    """
    prefer_new_results()  # the session's batches come several times; what the step warmed up on, once more
    eager, captured = _both_ways(session, look=look, progress=progress)
    forget_unused_results()  # of what is drawn at random, and so comes in one run only
    progress("watching what the host does")
    return Recording(
        device=session.device.kind,
        mode=session.target.mode,
        eager=eager,
        captured=captured,
        host=host_events(session, captured, Trials(session, _unrecorded)),
        optimizers=tuple(_optimizers(session)),
        limits=(
            *session.start.limits,
            *_unseen(captured),
            *_cold(eager, captured),
            *_undefined(eager),
            *_between_ranks(captured),
        ),
    )


def _both_ways(
    session: Session, *, look: Look | None, progress: Callable[[str], None]
) -> tuple[tuple[Iteration, ...], tuple[Iteration, ...]]:
    """As eager runs it, and as a capture sees it: the same iterations, where nobody asks whether it is captured."""
    run = partial(record_series, session, progress=progress)
    if not MEETING.everywhere(not session.device.was_asked):
        return run(capturing=False, look=look), run(capturing=True)
    captured = run(capturing=True)
    if not MEETING.everywhere(not session.device.was_asked):  # in a later iteration
        return run(capturing=False, look=look), captured
    return tuple(msgspec.structs.replace(one, capturing=False) for one in captured), captured


def _unseen(captured: tuple[Iteration, ...]) -> Iterator[str]:
    """What the step did that no operator shows, once for each place."""
    events = (event for iteration in captured for event in iteration.events)
    places = {e.location: e for e in events if e.kind == "graph-replay"}
    for location in places:
        where = f" ({file_line(location)})" if location else ""
        yield f"The step replays a CUDA graph of its own{where}: what runs in it is not recorded."


def _cold(eager: tuple[Iteration, ...], captured: tuple[Iteration, ...]) -> Iterator[str]:
    """Kernels of others that run first inside a capture: they compile, tune or make handles there."""
    known = {op.name for iteration in eager for op in iteration.ops}
    first = {op.name: op for iteration in captured for op in iteration.ops if op.name not in known}
    for name, op in sorted(first.items()):
        if op.is_cuda and not name.startswith(("aten.", "prims.", "profiler.")):
            where = f" ({file_line(op.location)})" if op.location else ""
            yield (
                f"{name}{where} runs only while the step is captured, so that eager warm-ups never run"
                " it: what it does in its first call, such as compiling or tuning, falls into the capture."
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
    doing = "as a capture would see it" if capturing else "as eager runs it"
    # Numbers of runs are unique in a session: what one series made is old to the other.
    base = (len(session.batches) if capturing else 0) + 1
    iterations: list[Iteration] = []
    with session.from_the_start(capturing=capturing):
        before = HostState(session.target.roots, session.device.table)
        for index in range(len(session.batches)):
            progress(f"recording the step {doing} ({index + 1} of {len(session.batches)})")
            observed = _observe(session, index, run=base + index, before=before, look=look)
            after = HostState(session.target.roots, session.device.table)
            made = observed.iteration(index, capturing, before.changes(after))
            externals = with_buckets(made.externals, made.ops, session.target.roots)
            iterations.append(msgspec.structs.replace(made, externals=externals))
            before = after
    return tuple(iterations)


class _Observed(NamedTuple):
    """One run of the step, before it is known what the host changed in it."""

    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    observer: OperatorObserver

    def iteration(self, index: int, capturing: bool, changes: tuple[StateChange, ...]) -> Iteration:
        return Iteration(
            index=index,
            capturing=capturing,
            inputs=self.inputs,
            ops=tuple(self.observer.ops),
            events=tuple(self.observer.events),
            externals=tuple(self.observer.externals.values()),
            outputs=self.outputs,
            changes=changes,
        )


def _observe(
    session: Session,
    index: int,
    *,
    run: int,
    before: HostState,
    look: Look | None = None,
    also: Sequence[Observer] = (),
) -> _Observed:
    inputs = session.inputs(index)
    given = input_leaves(inputs)
    observer = OperatorObserver(
        session.device.table,
        session.scopes,
        iteration=run,
        named=_named_storages(session, before, given),
        device_of=session.device.device_name_of,
    )
    with torch._C.DisableTorchFunction():
        input_values = tuple(_leaf(observer, path, value) for path, value in given.items())
    with ExitStack() as stack:
        for one in (observer, *also):
            stack.enter_context(session.device.observed_by(one))
        result = session.call(inputs)
    with torch._C.DisableTorchFunction():
        outputs = tuple(
            _output(observer, path, value, session.device.table)
            for path, value in leaves(result, "output").items()
        )
    if look is not None:
        look(inputs, result)
    return _Observed(input_values, outputs, observer)


def _unrecorded(session: Session, before: HostState, also: Observer) -> Iteration:
    """The step's first iteration once more, whatever the host changes in it."""
    return _observe(session, 0, run=1, before=before, also=[also]).iteration(0, True, ())


def _output(observer: OperatorObserver, path: str, value: object, table: StorageTable) -> Leaf:
    leaf = _leaf(observer, path, value)
    if isinstance(value, torch.Tensor) and not table.has_true_values(value):
        return leaf
    return msgspec.structs.replace(leaf, has_nan=_has_nan(value), sample=sample_of(value))


def _has_nan(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.is_nested:
        return False
    if not has_memory(value):
        return False
    values = parts_of(value)[0]  # of a sparse one, what it holds
    with torch._C._DisableTorchDispatch():  # our look at it is no part of the step
        return bool(values.isnan().any())


def _named_storages(
    session: Session, before: HostState, given: dict[str, object]
) -> dict[int, tuple[str, str]]:
    """Storages with a name before the step runs: its state, also where it is passed in, and its inputs."""
    named: dict[int, tuple[str, str]] = {}
    for path, number in before.storages.items():
        named.setdefault(number, ("state", path))
    for path, value in given.items():
        if isinstance(value, torch.Tensor):
            named.setdefault(session.device.table.info(value).number, ("input", path))
    for path, tensor in gathered_parameters(session.target.roots):
        named.setdefault(session.device.table.info(tensor).number, ("state", path))
    return named


def _leaf(observer: OperatorObserver, path: str, value: object) -> Leaf:
    if isinstance(value, torch.Tensor):
        return Leaf(path, observer.use(value))
    try:
        return Leaf(path, repr(value)[:200])
    except Exception:  # __repr__ is the user's code
        return Leaf(path, type(value).__name__)


def _optimizers(session: Session) -> list[OptimizerInfo]:
    found = []
    for path, root in session.target.roots.items():
        if isinstance(root, torch.optim.Optimizer):
            found.append(_optimizer(path, root))
    return found


def _optimizer(path: str, optimizer: torch.optim.Optimizer) -> OptimizerInfo:
    group: dict[str, Any] = optimizer.param_groups[0] if optimizer.param_groups else {}
    is_tensor = isinstance(group.get("lr"), torch.Tensor)
    return OptimizerInfo(
        path=path,
        class_name=type(optimizer).__name__,
        capturable=bool(group["capturable"]) if "capturable" in group else None,
        fused=bool(group.get("fused")),
        lr_kind="tensor" if is_tensor else "float",
    )


_MOST = 256  # values, spread evenly over the tensor


def sample_of(value: object) -> Sample | None:
    """None for what is no plain tensor with values; the host may wait for the device here."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return None
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        return None
    if not has_memory(value):
        return None
    with torch._C._DisableTorchDispatch():  # our look at it is no part of the step
        flat = value.detach().resolve_conj().resolve_neg()
        flat = (torch.view_as_real(flat) if flat.is_complex() else flat).reshape(-1)
        step = max(1, -(-flat.numel() // _MOST))
        values = flat[::step].double().cpu()
        eps = torch.finfo(flat.dtype).eps if flat.dtype.is_floating_point else 0.0
        scale = _largest(flat) if eps else 0.0
    return Sample(tuple(values.tolist()), scale=scale, eps=eps)


def _largest(flat: torch.Tensor) -> float:
    """The largest finite magnitude among these values."""
    if flat.dtype.itemsize == 1:
        flat = flat.float()  # float8 lacks the operators
    low, high = torch.aminmax(flat)
    if math.isfinite(largest := max(-float(low), float(high))):
        return largest
    finite = flat[flat.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
