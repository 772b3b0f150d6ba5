"""One recorded iteration and what becomes graphs -> the step on two lanes, eager and with graphs."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.estimate.calls import Regions
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.estimate.kernels import launches
from graphdoctor.estimate.layout import Piece, place
from graphdoctor.estimate.predict import corner_cases, graph_pieces
from graphdoctor.estimate.timeline import eager_pieces
from graphdoctor.values.lanes import CapturedWork, EagerOperator, Placement, StepLanes
from graphdoctor.values.recording import Iteration

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
