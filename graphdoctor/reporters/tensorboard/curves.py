"""Writes curves for TensorBoard, with a point for each batch size of a sweep or each strategy of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from graphdoctor.values.errors import CannotDoItHere, UsageError
from graphdoctor.values.figures import Range
from graphdoctor.values.report import Report
from graphdoctor.values.speed import StrategyOutcome
from graphdoctor.values.sweep import Sweep, SweepRow

STRATEGIES = "strategies"  # the run that has their curves


class Curve(Struct, frozen=True):
    """The points of one tag, each a step and a value."""

    tag: str
    description: str
    points: tuple[tuple[int, float], ...]


def summary_writer() -> Any:
    """The class that writes event files. Raises CannotDoItHere where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise CannotDoItHere(
            "TensorBoard cannot be imported, so no figures and no text are written for it:"
            f" pip install 'graphdoctor[tensorboard]' ({error})."
        ) from error
    return SummaryWriter


def add_point(writer: Any, curve: Curve, point: tuple[int, float]) -> None:
    """With the description, which TensorBoard's own function for scalars does not take."""
    from torch.utils.tensorboard.summary import scalar

    step, value = point
    described = scalar(curve.tag, value)
    described.value[0].metadata.summary_description = curve.description
    writer.file_writer.add_summary(described, step)


def _write(folder: Path, curves: Sequence[Curve]) -> None:
    """Replace what was written there before: TensorBoard keeps the first description of a tag."""
    write_events = summary_writer()
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    if not any(curve.points for curve in curves):
        return
    writer = write_events(log_dir=str(folder))
    try:
        for curve in curves:
            for point in curve.points:
                add_point(writer, curve, point)
    finally:
        writer.close()


_STEP = "Wall time of one step, in microseconds"
_SAMPLES = "Samples in a second"
_SPEEDUP = "Time of the eager step, divided by that with CUDA graphs"
_WAITING = "Share of the eager step in which the GPU waits for launches"
_BUSY = "Share of the eager step in which the GPU is busy"
_SWEPT: tuple[tuple[str, str, str, Callable[[SweepRow], Range | None]], ...] = (
    ("eager", "sweep/step_us", _STEP, lambda row: row.eager_us),
    ("graph", "sweep/step_us", _STEP, lambda row: row.graph_us),
    ("eager", "sweep/samples_per_s", _SAMPLES, lambda row: row.eager_samples_per_s),
    ("graph", "sweep/samples_per_s", _SAMPLES, lambda row: row.graph_samples_per_s),
    ("graph", "sweep/speedup", _SPEEDUP, lambda row: row.speedup),
    ("eager", "sweep/launch_bound_share", _WAITING, lambda row: row.launch_bound_share),
    ("eager", "sweep/device_busy_share", _BUSY, lambda row: row.device_busy_share),
)


def write_sweep(sweep: Sweep, folder: Path) -> None:
    """The runs `sweep/eager` and `sweep/graph`; the step of a point is its batch size.

    Raises CannotDoItHere where TensorBoard is not installed, UsageError where the folder cannot be written.
    """
    how = _how(sweep)
    try:
        for run in ("eager", "graph"):
            _write(
                folder / "sweep" / run,
                [
                    Curve(tag, f"{what}, over the batch size. {how}", _points(sweep.rows, figure))
                    for mine, tag, what, figure in _SWEPT
                    if mine == run
                ],
            )
    except OSError as error:
        raise UsageError(f"Cannot write to {folder}: {error.strerror or error}.") from error


def _points(
    rows: Sequence[SweepRow], figure: Callable[[SweepRow], Range | None]
) -> tuple[tuple[int, float], ...]:
    found = ((row.batch, figure(row)) for row in rows)
    return tuple((batch, value.mid) for batch, value in found if value is not None)


def _how(sweep: Sweep) -> str:
    measured = [str(row.batch) for row in sweep.rows if row.measurement is not None]
    shown = [str(row.batch) for row in sweep.rows if row.eager_us is not None]
    if measured == shown:
        return f"Measured on {sweep.gpu}."
    if not measured:
        return f"Predicted for {sweep.gpu}."
    return f"Measured on {sweep.gpu} at batch {', '.join(measured)}; else predicted."


_OF_STRATEGIES: tuple[tuple[str, str, Callable[[StrategyOutcome], float | None]], ...] = (
    (
        "speedup_predicted",
        "Predicted speedup over eager.",
        lambda one: one.predicted.mid if one.predicted is not None else None,
    ),
    (
        "speedup_measured",
        "Measured speedup over eager.",
        lambda one: one.measurement.speedup if one.measurement is not None else None,
    ),
    (
        "captured_share",
        "Share of the launches of a step that graphs take over.",
        lambda one: one.captured_share,
    ),
    ("launches", "Launches of a step.", lambda one: one.launches),
    ("prepare_s", "Seconds of warm-up, compilation and capture.", lambda one: one.prepare_s),
    (
        "extra_bytes",
        "Memory of the device beyond that of eager, in bytes.",
        lambda one: one.extra_bytes,
    ),
)


def write_strategies(report: Report, folder: Path) -> None:
    """The run `strategies`; the step of a point is the strategy's place in the report, which descriptions tell.

    Raises CannotDoItHere where TensorBoard is not installed, and OSError.
    """
    places = ", ".join(f"{place}: {one.strategy}" for place, one in enumerate(report.strategies))
    curves = []
    for name, what, figure in _OF_STRATEGIES:
        found = ((place, figure(one)) for place, one in enumerate(report.strategies))
        points = tuple((place, float(value)) for place, value in found if value is not None)
        curves.append(
            Curve(f"strategies/{name}", f"{what} Steps are strategies: {places}.", points)
        )
    _write(folder / STRATEGIES, curves)
