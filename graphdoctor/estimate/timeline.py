"""Arranges operators in order as the pieces of an eager or a captured step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from graphdoctor.estimate.costs import bandwidth_gb_s, known_costs, transfer_us
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.kernels import launches
from graphdoctor.estimate.network import exposed_us
from graphdoctor.estimate.ranges import ZERO
from graphdoctor.estimate.two_lanes import Piece
from graphdoctor.operators import waiting_backwards
from graphdoctor.values.figures import Range
from graphdoctor.values.host_events import HostEvent
from graphdoctor.values.recording import Op, TensorUse

_NOTHING = Piece(ZERO, ZERO, 0)


def eager_pieces(
    ops: Iterable[Op],
    profile: DeviceProfile,
    *,
    events: Sequence[HostEvent] = (),
    inside: str | None = None,
) -> Iterator[Piece]:
    """One piece for each operator, with the modules entered and the autograd nodes run before it.

    `inside` is the module that is running already, None outside any. A wait after the last
    operator is one piece more.
    """
    stops = iter(sorted(event.op_index for event in events if event.host_waits))
    stop = next(stops, None)
    previous: Op | None = None
    costs = known_costs(profile)
    every = tuple(ops)
    autograd = any(op.phase == "backward" for op in every)
    exposed = exposed_us(every, lambda op: costs.cost(op, autograd=autograd).device_us, profile)
    training = _Training(every, profile)
    waiting = {op.index for op, _ in waiting_backwards(every)}
    for op in every:
        waits = op.index in waiting
        while stop is not None and stop <= op.index:
            waits, stop = True, next(stops, None)
        cost = costs.cost(op, autograd=autograd)
        before_us = _entering_us(op, inside, profile) + training.before_us(op, previous)
        yield Piece(
            host_us=cost.host_us + before_us,
            device_us=exposed.get(op.index, cost.device_us),
            launches=cost.launches,
            is_sync=cost.is_sync,
            waits_before=waits,
            operator=op.index,
        )
        previous, inside = op, op.module
    if stop is not None:
        yield Piece(ZERO, ZERO, 0, is_sync=True)


def _entering_us(op: Op, inside: str | None, profile: DeviceProfile) -> Range:
    """Host time of the modules entered on the way to a forward operator."""
    if op.phase != "forward":
        return ZERO
    return profile.host_us.module_call.range * _entered(op.module, inside)


class _Training:
    """What training costs the host beside operators: where autograd's engine starts, and at each of its nodes.

    A parameter's part is the engine's, which makes its gradient: an optimizer by itself costs its operators.
    """

    def __init__(self, ops: Sequence[Op], profile: DeviceProfile) -> None:
        self._costs = profile.host_us
        nodes = sum(map(_is_node, ops, (None, *ops)))
        share = sum(_updates(ops)) / nodes if nodes else 0.0
        gradients = self._costs.gradient.range * share
        self._node_us = self._costs.backward_node.range + gradients

    def before_us(self, op: Op, previous: Op | None) -> Range:
        if op.phase != "backward":
            return ZERO
        node_us = self._node_us if _is_node(op, previous) else ZERO
        is_start = previous is not None and previous.phase != "backward"
        return node_us + self._costs.backward_pass.range if is_start else node_us


def _is_node(op: Op, previous: Op | None) -> bool:
    """Whether autograd's engine ran another node before this operator."""
    if op.phase != "backward" or op.kernels == 0:
        return False
    is_new = previous is None or previous.forward_index != op.forward_index
    return is_new or op.forward_index is None


def _updates(ops: Sequence[Op]) -> Iterator[int]:
    """The parameters of each run of an optimizer's operators.

    One foreach or fused operator lists them all; else one kind of operator runs once for each.
    """
    written: Counter[str] = Counter()
    for op in ops:
        if op.phase == "optimizer":
            if launches(op):
                lists = [arg for arg in op.args if isinstance(arg, tuple)]
                written[op.name] += len(lists[0]) if lists else min(1, len(op.writes))
        elif written:
            yield max(written.values())
            written = Counter()
    if written:
        yield max(written.values())


def _entered(module: str, before: str | None) -> int:
    """How many modules were called on the way from one module path to the next."""
    path = module.split(".") if module else []
    if before is None:
        return len(path) + 1
    old = before.split(".") if before else []
    shared = 0
    while shared < min(len(path), len(old)) and path[shared] == old[shared]:
        shared += 1
    return len(path) - shared


def graph_piece(ops: Iterable[Op], profile: DeviceProfile) -> Piece:
    """The replay of these operators as one graph; what cannot be in a graph is taken to be gone."""
    device, nodes = ZERO, 0
    costs = known_costs(profile)
    every = tuple(ops)
    exposed = exposed_us(every, lambda op: costs.cost(op, autograd=False).device_us, profile)
    for op in every:
        cost = costs.cost(op, autograd=False)
        if cost.launches:
            device += exposed.get(op.index, cost.device_us)
            nodes += cost.launches
    return Piece(profile.launch_of_graph_us(nodes), device, 1, nodes=nodes) if nodes else _NOTHING


def copy_pieces(inputs: Iterable[TensorUse], profile: DeviceProfile) -> Iterator[Piece]:
    """One copy_ into a static buffer of the graph for each tensor on the device."""
    host = profile.host_us.operator.range + profile.launch_us.range
    for use in inputs:
        if use.is_cuda:
            moved = 2 * use.nbytes
            rate = bandwidth_gb_s(profile, profile.memory_share.stream, moved=moved)
            work = transfer_us(moved, rate)
            yield Piece(host, work + profile.smallest_kernel_us.stream.range, 1, is_copy=True)
