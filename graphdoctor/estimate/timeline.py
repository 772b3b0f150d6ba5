"""Operators in order -> the pieces of an eager or of a captured step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from graphdoctor.estimate.costs import bandwidth_gb_s, known_costs, transfer_us
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.kernels import launches
from graphdoctor.estimate.layout import Piece
from graphdoctor.estimate.network import exposed_us
from graphdoctor.estimate.ranges import ZERO, add, scale
from graphdoctor.values.recording import HostEvent, Op, TensorUse
from graphdoctor.values.report import Range

_NOTHING = Piece(ZERO, ZERO, 0)


def eager_pieces(
    ops: Iterable[Op],
    profile: DeviceProfile,
    *,
    autograd: bool,
    events: Sequence[HostEvent] = (),
    inside: str | None = None,
) -> Iterator[Piece]:
    """One piece for each operator, with the modules entered and the autograd nodes run before it.

    `inside` is the module that is running already, None outside any. A wait after the last
    operator is one piece more.
    """
    stops = iter(sorted(event.op_index for event in events if event.kind == "sync"))
    stop = next(stops, None)
    previous: Op | None = None
    costs = known_costs(profile)
    every = tuple(ops)
    exposed = exposed_us(every, lambda op: costs.cost(op, autograd=autograd).device_us, profile)
    training = _Training(every, profile)
    for position, op in enumerate(every):
        waits = False
        while stop is not None and stop <= op.index:
            waits, stop = True, next(stops, None)
        cost = costs.cost(op, autograd=autograd)
        before_us = add(
            _entering_us(op, inside, profile), training.before_us(position, op, previous)
        )
        yield Piece(
            host_us=add(cost.host_us, before_us),
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
    return scale(profile.host_us.module_call.range, _entered(op.module, inside))


class _Training:
    """What training costs the host beside operators: at the optimizers' first launches, and at each node.

    `updates` are the parameters by the position of the first operator that launches anything for them.
    One foreach or fused operator lists them all; else one kind of operator runs once for each.
    """

    def __init__(self, ops: Sequence[Op], profile: DeviceProfile) -> None:
        self._costs = profile.host_us
        self.updates = dict(_updates(ops))
        nodes = sum(map(_is_node, ops, (None, *ops)))
        share = sum(self.updates.values()) / nodes if nodes else 0.0
        gradients = scale(self._costs.gradient.range, share)
        self._node_us = add(self._costs.backward_node.range, gradients)

    def before_us(self, position: int, op: Op, previous: Op | None) -> Range:
        if op.phase == "backward":
            return self._node_us if _is_node(op, previous) else ZERO
        if (parameters := self.updates.get(position)) is None:
            return ZERO
        each = scale(self._costs.parameter.range, parameters)
        return add(self._costs.training_step.range, each)


def _is_node(op: Op, previous: Op | None) -> bool:
    """Whether autograd's engine ran another node before this operator."""
    if op.phase != "backward" or op.kernels == 0:
        return False
    is_new = previous is None or previous.forward_index != op.forward_index
    return is_new or op.forward_index is None


def _updates(ops: Sequence[Op]) -> Iterator[tuple[int, int]]:
    """Each run of an optimizer's operators: where it begins to launch, and its parameters."""
    start: int | None = None
    written: Counter[str] = Counter()
    for position, op in enumerate(ops):
        if op.phase == "optimizer":
            if launches(op):
                start = position if start is None else start
                lists = [arg for arg in op.args if isinstance(arg, tuple)]
                written[op.name] += len(lists[0]) if lists else min(1, len(op.writes))
        elif start is not None:
            yield start, max(written.values())
            start, written = None, Counter()
    if start is not None:
        yield start, max(written.values())


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


def graph_piece(ops: Iterable[Op], profile: DeviceProfile, *, autograd: bool = False) -> Piece:
    """The replay of these operators as one graph; what cannot be in a graph is taken to be gone."""
    device, nodes = ZERO, 0
    costs = known_costs(profile)
    every = tuple(ops)
    exposed = exposed_us(every, lambda op: costs.cost(op, autograd=autograd).device_us, profile)
    for op in every:
        cost = costs.cost(op, autograd=autograd)
        if cost.launches:
            device = add(device, exposed.get(op.index, cost.device_us))
            nodes += cost.launches
    return Piece(profile.launch_of_graph_us(nodes), device, 1, nodes=nodes) if nodes else _NOTHING


def copy_pieces(inputs: Iterable[TensorUse], profile: DeviceProfile) -> Iterator[Piece]:
    """One copy_ into a static buffer of the graph for each tensor on the device."""
    host = add(profile.host_us.operator.range, profile.launch_us.range)
    for use in inputs:
        if use.is_cuda:
            moved = 2 * use.nbytes
            rate = bandwidth_gb_s(profile, profile.memory_share.stream, moved=moved)
            work = transfer_us(moved, rate)
            yield Piece(host, add(work, profile.smallest_kernel_us.stream.range), 1, is_copy=True)
