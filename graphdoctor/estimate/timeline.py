"""Operators in order -> the pieces of an eager or of a captured step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from graphdoctor.estimate.costs import bandwidth_gb_s, known_costs, transfer_us
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.layout import Piece
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
    for op in ops:
        waits = False
        while stop is not None and stop <= op.index:
            waits, stop = True, next(stops, None)
        cost = costs.cost(op, autograd=autograd)
        yield Piece(
            host_us=add(cost.host_us, _between_us(op, previous, inside, profile)),
            device_us=cost.device_us,
            launches=cost.launches,
            is_sync=cost.is_sync,
            waits_before=waits,
            operator=op.index,
        )
        previous, inside = op, op.module
    if stop is not None:
        yield Piece(ZERO, ZERO, 0, is_sync=True)


def _between_us(op: Op, previous: Op | None, inside: str | None, profile: DeviceProfile) -> Range:
    """Host time between two operators: entered modules going forward, the engine going backward."""
    costs = profile.host_us
    if op.phase == "backward":
        is_new = previous is None or previous.forward_index != op.forward_index
        return costs.backward_node.range if is_new or op.forward_index is None else ZERO
    if op.phase != "forward":
        return ZERO
    return scale(costs.module_call.range, _entered(op.module, inside))


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
    for op in ops:
        cost = costs.cost(op, autograd=autograd)
        if cost.launches:
            device = add(device, cost.device_us)
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
