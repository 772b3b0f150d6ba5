"""Timing what was built: alone on the machine, with few calls where state moves."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.strategies import timing
from graphdoctor.strategies.timing import break_even_calls
from graphdoctor.values.speed import Measurement
from tests.support import fake_strategies as fakes
from tests.support.strategy_rows import (
    a_session,
    measurement,
    on_a_gpu,
)
from tests.support.traces import TraceBuilder


def test_nothing_of_a_compiler_runs_or_lies_around_while_a_step_is_timed(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.unfreeze()  # what these tests themselves keep out of collections
    done: list[str] = []

    def timed(*_: Any, **__: Any) -> Measurement:
        done.append(f"timed, frozen {gc.get_freeze_count() > 0}")
        return measurement(1.9, 2.0, 2.1)

    pools = SimpleNamespace(shutdown_compile_workers=lambda: done.append("workers ended"))
    monkeypatch.setitem(sys.modules, "torch._inductor.async_compile", pools)
    monkeypatch.setattr(timing, "measure", timed)
    on_a_gpu(device, fakes.Fake())
    assert done == ["workers ended", "timed, frozen True"]
    assert gc.get_freeze_count() == 0


def test_this_torch_can_end_its_compile_workers() -> None:
    from torch._inductor import async_compile

    assert callable(async_compile.shutdown_compile_workers)


def test_a_step_that_moves_a_number_is_not_called_thousands_of_times(
    device: EmulatedDevice,
) -> None:
    session, _ = a_session(device)
    step = SimpleNamespace(start=session.start)
    assert timing._blocks(session, step).most_calls == len(session.batches)  # type: ignore[arg-type]


def test_what_graphs_launched_is_told_from_what_they_did_not(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.step(1, 0, 100)
    graph = builder.call("cudaGraphLaunch", 1, 5)
    for start in (10, 20, 30):
        builder.kernel(graph, start, 5)
    builder.kernel(builder.call("cudaLaunchKernel", 7, 2), 40, 5)
    assert timing.graphed_share(builder.trace()) == pytest.approx(0.75)


def test_preparation_pays_after_so_many_calls_or_never() -> None:
    assert break_even_calls(1.0, measurement(1.9, 2.0, 2.1)) == 2000
    assert break_even_calls(1.0, measurement(0.9, 1.0, 1.1)) is None
    assert break_even_calls(1.0, measurement(0.4, 0.5, 0.6)) is None
