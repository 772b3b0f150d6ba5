"""A session -> its recording: some iterations as eager runs them, and as a capture sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphdoctor.record.changes import HostState
from graphdoctor.record.host import HostObserver
from graphdoctor.record.operators import OperatorObserver
from graphdoctor.record.session import Session
from graphdoctor.recording import HostEvent, Iteration, Leaf, OptimizerInfo, Recording
from graphdoctor.target.state import named_tensors
from graphdoctor.target.tree import input_leaves, leaves


def record(session: Session, *, progress: Callable[[str], None]) -> Recording:
    """Run the step in both ways, and once more for what the host draws; the state is put back."""
    progress("recording the step as eager runs it")
    eager = _series(session, capturing=False)
    progress("recording the step as a capture would see it")
    captured = _series(session, capturing=True)
    progress("watching what the host does")
    return Recording(
        device=session.device.kind,
        mode=session.target.mode,
        eager=eager,
        captured=captured,
        host=_host_events(session),
        optimizers=tuple(_optimizers(session)),
        limits=session.start.limits,
    )


def _series(session: Session, *, capturing: bool) -> tuple[Iteration, ...]:
    # Numbers of runs are unique in a session: what the first series made is old to the second.
    base = (len(session.batches) if capturing else 0) + 1
    with session.from_the_start(capturing=capturing):
        return tuple(
            record_iteration(session, index, run=base + index, capturing=capturing)
            for index in range(len(session.batches))
        )


def record_iteration(session: Session, index: int, *, run: int, capturing: bool) -> Iteration:
    table = session.device.table
    inputs = session.inputs(index)
    given = input_leaves(inputs)
    before = HostState(session.target.roots, table)
    observer = OperatorObserver(
        table,
        session.scopes,
        iteration=run,
        named=_named_storages(session, given),
        device_of=session.device.device_name_of,
    )
    with torch._C.DisableTorchFunction():
        input_values = tuple(_leaf(observer, path, value) for path, value in given.items())
    with session.device.observed_by(observer):
        result = session.call(inputs)
    with torch._C.DisableTorchFunction():
        outputs = tuple(_leaf(observer, p, v) for p, v in leaves(result, "output").items())
    return Iteration(
        index=index,
        capturing=capturing,
        inputs=input_values,
        ops=tuple(observer.ops),
        events=tuple(observer.events),
        externals=tuple(observer.externals.values()),
        outputs=outputs,
        changes=before.changes(HostState(session.target.roots, table)),
    )


def _named_storages(session: Session, given: dict[str, object]) -> dict[int, tuple[str, str]]:
    """Storages with a name before the step runs: its state, and its inputs."""
    number = session.device.table.info
    named: dict[int, tuple[str, str]] = {}
    for path, tensor in named_tensors(session.target.roots).items():
        named.setdefault(number(tensor).number, ("state", path))
    for path, value in given.items():
        if isinstance(value, torch.Tensor):
            named[number(value).number] = ("input", path)
    return named


def _leaf(observer: OperatorObserver, path: str, value: object) -> Leaf:
    if isinstance(value, torch.Tensor):
        return Leaf(path, observer.use(value))
    try:
        return Leaf(path, repr(value)[:200])
    except Exception:  # __repr__ is the user's code
        return Leaf(path, type(value).__name__)


def _host_events(session: Session) -> tuple[HostEvent, ...]:
    """What the host drew and read in the second of two watched iterations.

    The first one makes Python import things lazily, and imports draw random numbers of their own.
    """
    seen: tuple[HostEvent, ...] = ()
    with session.from_the_start(capturing=True):
        for index in range(min(2, len(session.batches))):
            inputs = session.inputs(index)
            observer = HostObserver()
            with session.device.observed_by(observer), observer:
                session.call(inputs)
            seen = tuple(observer.events)
    return seen


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
