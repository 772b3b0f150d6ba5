"""Predicts the time of one recorded iteration on a device, and draws the step on two lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from graphdoctor.estimate.calls import NO_CALLS, Calls, Regions, calling, handed_over
from graphdoctor.estimate.costs import known_costs, matrix_flops
from graphdoctor.estimate.gpus import DeviceProfile, Figure, Level, assumed_figures
from graphdoctor.estimate.hosts import slowed
from graphdoctor.estimate.kernels import launches
from graphdoctor.estimate.network import network_notes, network_terms
from graphdoctor.estimate.ranges import (
    BUSY,
    EAGER,
    GRAPH,
    SPEEDUP,
    ZERO,
    around,
    capped,
    pooled_width,
)
from graphdoctor.estimate.timeline import copy_pieces, eager_pieces, graph_piece
from graphdoctor.estimate.two_lanes import Case, Piece, lay_out, place
from graphdoctor.values.figures import Range
from graphdoctor.values.lanes import CapturedWork, EagerOperator, Placement, StepLanes
from graphdoctor.values.recording import Iteration, Op, TensorUse
from graphdoctor.values.speed import Estimate, OtherHost, Term

_AS_IT_IS = Range.exact(1.0)
_OTHER_HOSTS = (2.0, 0.5)  # times as long


def estimate(
    iteration: Iteration,
    profile: DeviceProfile,
    regions: Regions | None = None,
    *,
    calls: Calls = NO_CALLS,
) -> Estimate:
    """Eager time and graph time of one step on the profile's GPU.

    `regions`: the operators that are replayed as graphs, the rest runs as it does today; None
    asks what the whole step would take as one graph. A range goes out from every combination of a
    slow or fast host with a slow or fast device, eager and graph being compared within each, and is
    as wide as measurements ask for (`widths`). `calls` is what calling the graphs costs the host beside
    their launches.
    """
    found = corners(iteration, profile, regions, calls=calls)
    eager = found.eager
    eager_us = EAGER.of(found.eager_us)
    count = sum(piece.launches for piece in eager)
    is_graphed = any(piece.nodes for piece in found.graph)
    return Estimate(
        gpu=profile.title,
        basis="predicted",
        launches=count,
        host_us=EAGER.of(found.host_us),
        device_busy_us=capped(BUSY.of(found.busy_us), eager_us),
        eager_us=eager_us,
        graph_us=GRAPH.of(found.graph_us) if is_graphed else eager_us,
        launch_bound_share=found.launch_bound_share,
        speedup=SPEEDUP.of(found.speedup) if is_graphed else _AS_IT_IS,
        terms=(
            *_terms(profile, count),
            *_copy_terms(found.graph),
            *network_terms(iteration.ops, profile),
        ),
        notes=tuple(_notes(iteration, profile, regions, eager)),
        host=profile.host,
    )


class Corners(Struct, frozen=True):
    """A step and its graphs on a slow or fast host with a slow or fast device, and in the middle."""

    eager: tuple[Piece, ...]
    graph: tuple[Piece, ...]
    host_us: Range
    busy_us: Range
    eager_us: Range
    graph_us: Range
    launch_bound_share: Range
    speedup: Range


def corners(
    iteration: Iteration,
    profile: DeviceProfile,
    regions: Regions | None = None,
    *,
    calls: Calls = NO_CALLS,
    is_middle_alone: bool = False,
) -> Corners:
    """What `estimate` goes out from: how wide ranges have to be is another question."""
    eager = tuple(eager_pieces(iteration.ops, profile, events=iteration.events))
    graph = (
        *calling(calls, profile),
        *handed_over(iteration, profile, regions, calls),
        *graph_pieces(iteration, profile, regions, eager),
    )
    cases = corner_cases(eager)[: 1 if is_middle_alone else None]
    before = [lay_out(eager, profile, case) for case in cases]
    after = [lay_out(graph, profile, case) for case in cases]
    return Corners(
        eager=eager,
        graph=graph,
        host_us=around([case.host_us for case in before]),
        busy_us=around([case.busy_us for case in before]),
        eager_us=around([case.span_us for case in before]),
        graph_us=around([case.span_us for case in after]),
        launch_bound_share=around(
            [case.waiting_us / case.span_us if case.span_us else 0.0 for case in before]
        ),
        speedup=around(
            [
                (old.span_us / new.span_us if old.span_us and new.span_us else 1.0)
                for old, new in zip(before, after, strict=True)
            ]
        ),
    )


def on_other_hosts(
    iteration: Iteration, profile: DeviceProfile, regions: Regions | None = None
) -> tuple[OtherHost, ...]:
    """The middle prediction on a host half as fast, and on one twice as fast."""
    found = []
    for times in _OTHER_HOSTS:
        there = corners(iteration, slowed(profile, times), regions, is_middle_alone=True)
        is_graphed = any(piece.nodes for piece in there.graph)
        eager_us, graph_us = there.eager_us.mid, there.graph_us.mid
        found.append(
            OtherHost(times, eager_us, graph_us, there.speedup.mid)
            if is_graphed
            else OtherHost(times, eager_us, eager_us, 1.0)
        )
    return tuple(found)


def saving_us(ops: Sequence[Op], profile: DeviceProfile) -> Range:
    """Time saved by replaying these operators, alone, as one graph; below 0 where it costs.

    Copies into the graph's static inputs are left out: they depend on what runs before.
    """
    if not ops:
        return ZERO
    eager = tuple(eager_pieces(ops, profile, inside=ops[0].module))
    graph = (graph_piece(ops, profile),)
    return around(
        [
            lay_out(eager, profile, case).span_us - lay_out(graph, profile, case).span_us
            for case in corner_cases(eager)
        ]
    )


def corner_cases(eager: Sequence[Piece]) -> list[Case]:
    """The middle case first, then every combination of the ends."""
    host_width = pooled_width(piece.host_us for piece in eager)
    device_width = pooled_width(piece.device_us for piece in eager)
    ends: tuple[Level, Level] = ("low", "high")
    corners = [Case(host, device, host_width, device_width) for host in ends for device in ends]
    return [Case("mid", "mid", host_width, device_width), *corners]


def graph_pieces(
    iteration: Iteration, profile: DeviceProfile, regions: Regions | None, eager: Sequence[Piece]
) -> Iterator[Piece]:
    """What runs instead of the eager step: copies into static inputs, replays, and the rest."""
    inputs = [leaf.value for leaf in iteration.inputs if isinstance(leaf.value, TensorUse)]
    if regions is None:
        yield from copy_pieces(inputs, profile)
        yield replace(graph_piece(iteration.ops, profile), graph=0)
        return
    region_of = {index: number for number, region in enumerate(regions) for index in region}
    moving = {use.storage for use in inputs}
    replayed: set[int] = set()
    for position, op in enumerate(iteration.ops):
        number = region_of.get(op.index)
        if number is None:
            yield eager[position]
            moving.update(use.storage for use in op.outputs)
        elif number not in replayed:
            # A region is one graph, launched where it begins, also if operators between its own move away.
            replayed.add(number)
            ops = [iteration.ops[index] for index in regions[number]]
            yield from copy_pieces(_read_from(ops, moving), profile)
            yield replace(graph_piece(ops, profile), graph=number)
            moving.difference_update(use.storage for op in ops for use in op.outputs)
    yield from eager[len(iteration.ops) :]


def _read_from(ops: Sequence[Op], storages: set[int]) -> list[TensorUse]:
    """One use of each of these storages that the operators read."""
    found: dict[int, TensorUse] = {}
    for op in ops:
        for use in op.inputs:
            if use.storage in storages:
                found.setdefault(use.storage, use)
    return list(found.values())


def _terms(profile: DeviceProfile, launches: int) -> Iterator[Term]:
    """The figures that decide the result, with where they come from."""
    yield Term("kernel launches", f"{launches}", "counted operator by operator in the recording")
    named: tuple[tuple[str, Figure, str], ...] = (
        ("host, one operator", profile.host_us.operator, "us"),
        ("host, one kernel launch", profile.launch_us, "us"),
        ("smallest kernel", profile.smallest_kernel_us.stream, "us"),
        ("memory bandwidth", profile.memory_gb_s, "GB/s"),
        ("matrix arithmetic, bf16", profile.math_tflops.bf16, "TFLOP/s"),
        ("gap between graph nodes", profile.node_gap_us, "us"),
        ("launch of one graph", profile.graph_launch_us, "us"),
    )
    for name, figure, unit in named:
        yield Term(name, f"{_bounds(figure)} {unit}", figure.source)


def _copy_terms(graph: Sequence[Piece]) -> Iterator[Term]:
    copies = [piece.device_us.mid for piece in graph if piece.is_copy]
    if copies:
        value = f"{len(copies)} copies, {sum(copies):.1f} us on the device"
        yield Term("copies into the graph's inputs", value, "bytes over the memory bandwidth")


def _bounds(figure: Figure) -> str:
    if figure.low == figure.high:
        return f"{figure.mid:g}"
    return f"{figure.mid:g} ({figure.low:g} to {figure.high:g})"


def _notes(
    iteration: Iteration, profile: DeviceProfile, regions: Regions | None, eager: Sequence[Piece]
) -> Iterator[str]:
    """What the reader must know to judge the figures."""
    yield (
        f"Predicted for {profile.title} with {profile.host}; "
        f"{len(assumed_figures(profile))} of its figures are assumed, within wide bounds."
    )
    if profile.name != profile.fitted_on:
        fitted = profile.fitted_on.upper()
        yield f"Kernel overheads and shares of the peak were fitted on {fitted} and carried over."
    waits = sum(piece.is_sync + piece.waits_before for piece in eager)
    if waits and regions is None:
        times = "once" if waits == 1 else f"{waits} times"
        yield (
            f"The host waits for the device {times} a step; "
            "the graph's time assumes that it no longer does."
        )
    costs = known_costs(profile)
    yield from network_notes(
        iteration.ops, lambda op: costs.cost(op, autograd=False).device_us, profile
    )
    on_gpu = [op for op in iteration.ops if op.is_cuda and op.outputs]
    if any(op.outputs[0].dtype == "float32" and matrix_flops(op) for op in on_gpu):
        yield (
            "float32 matrix products are taken at full precision, "
            "convolutions at tf32 (PyTorch's defaults)."
        )


WHOLE = "whole step"
_NONE = -1


class _Table:
    """Each text once, in order, and its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._numbers)


def step_lanes(
    iteration: Iteration,
    profile: DeviceProfile,
    regions: Regions | None = None,
    *,
    names: Sequence[str] | None = None,
) -> StepLanes:
    """As `estimate` takes them: `regions` None is the whole step as one graph. `names` are those of its graphs."""
    eager = tuple(eager_pieces(iteration.ops, profile, events=iteration.events))
    middle = corner_cases(eager)[0]
    placed = place(eager, profile, middle)
    operators, modules, files = _Table(), _Table(), _Table()
    graph_of = _graph_of(iteration, regions)
    pieces = tuple(graph_pieces(iteration, profile, regions, eager)) if graph_of else ()
    captured = zip(pieces, place(pieces, profile, middle), strict=True)
    rows = tuple(
        EagerOperator(
            name=operators.number(op.name),
            module=modules.number(op.module),
            file=files.number(op.location.file) if op.location is not None else _NONE,
            line=op.location.line if op.location is not None else 0,
            graph=graph_of.get(op.index, _NONE),
            kernels=launches(op),
            at=at,
        )
        for op, at in zip(iteration.ops, _with_last_wait(placed, len(iteration.ops)), strict=True)
    )
    return StepLanes(
        gpu=profile.title,
        names=operators.texts,
        modules=modules.texts,
        files=files.texts,
        graphs=tuple(names or (WHOLE,)) if graph_of else (),
        eager=rows,
        captured=tuple(_work(piece, at) for piece, at in captured),
    )


def _with_last_wait(placed: Sequence[Placement], operators: int) -> list[Placement]:
    """The wait after the last operator is that operator's."""
    rows, after = list(placed[:operators]), placed[operators:]
    if rows and after:
        last = rows[-1]
        waited = last.waited_us + sum(at.waited_us for at in after)
        rows[-1] = Placement(
            last.host_at_us, last.host_us, round(waited, 2), last.device_at_us, last.device_us
        )
    return rows


def _graph_of(iteration: Iteration, regions: Regions | None) -> dict[int, int]:
    """The graph of each operator that has one."""
    if regions is None:
        return {op.index: 0 for op in iteration.ops}
    return {index: number for number, region in enumerate(regions) for index in region}


def _work(piece: Piece, at: Placement) -> CapturedWork:
    if piece.operator >= 0:
        return CapturedWork("operator", piece.operator, at)
    if piece.graph >= 0:
        return CapturedWork("graph", piece.graph, at)
    return CapturedWork("copy" if piece.is_copy else "wait", _NONE, at)
