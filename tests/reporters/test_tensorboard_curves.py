"""Curves for TensorBoard with a point for each batch size or strategy."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from graphdoctor.reporters.tensorboard.curves import write_strategies, write_sweep
from graphdoctor.sweep.run import row_of
from graphdoctor.values.errors import UsageError
from graphdoctor.values.sweep import GainEnd, Sweep, SweepRow
from tests.support.reports import COMPARED, ESTIMATE, SAFE

MEASURED = row_of(1, replace(SAFE, estimate=ESTIMATE))
PREDICTED = row_of(8, replace(SAFE, estimate=ESTIMATE, measurement=None))
FULL = SweepRow(batch=64, status="out-of-memory", reason="memory ran out")


def sweep_of(*rows: SweepRow) -> Sweep:
    return Sweep(
        schema_version=1,
        tool_version="0",
        target=SAFE.target,
        machine=SAFE.machine,
        gpu="a GPU",
        rows=rows,
        end=GainEnd("unknown", ""),
    )


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, pytest.approx(event.value)) for event in read(folder).Scalars(tag)]


def described(folder: Path, tag: str) -> str:
    return str(read(folder).SummaryMetadata(tag).summary_description)


def test_a_sweep_has_a_point_for_each_batch_size_with_figures(tmp_path: Path) -> None:
    write_sweep(sweep_of(MEASURED, PREDICTED, FULL), tmp_path)
    assert MEASURED.speedup is not None and PREDICTED.speedup is not None
    expected = [(1, MEASURED.speedup.mid), (8, PREDICTED.speedup.mid)]
    assert points(tmp_path / "sweep/graph", "sweep/speedup") == expected
    assert len(points(tmp_path / "sweep/eager", "sweep/step_us")) == 2
    text = described(tmp_path / "sweep/eager", "sweep/step_us")
    assert text.endswith("Measured on a GPU at batch 1; else predicted.")


def test_a_later_sweep_replaces_points_and_descriptions(tmp_path: Path) -> None:
    write_sweep(sweep_of(MEASURED), tmp_path)
    write_sweep(sweep_of(PREDICTED), tmp_path)
    assert [step for step, _ in points(tmp_path / "sweep/eager", "sweep/step_us")] == [8]
    assert described(tmp_path / "sweep/eager", "sweep/step_us").endswith("Predicted for a GPU.")


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Cannot write to"):
        write_sweep(sweep_of(MEASURED), tmp_path / "file")


def test_strategies_are_points_and_the_description_names_them(tmp_path: Path) -> None:
    write_strategies(COMPARED, tmp_path)
    predicted = [
        (place, one.predicted.mid)
        for place, one in enumerate(COMPARED.strategies)
        if one.predicted is not None
    ]
    assert len(predicted) > 1
    tag = "strategies/speedup_predicted"
    assert points(tmp_path / "strategies", tag) == predicted
    for place, one in enumerate(COMPARED.strategies):
        assert f"{place}: {one.strategy}" in described(tmp_path / "strategies", tag)
