"""A strategy in a process of its own: its row, or the way it ended."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.strategies.foresee import foresee
from graphdoctor.strategies.own_process import Job, in_own_process, own_processes
from graphdoctor.strategies.strategy import Strategy
from graphdoctor.values.options import AnalyzeOptions
from tests.support import fake_strategies as fakes
from tests.support.strategy_rows import (
    PROFILE,
    STEP_FILE,
    a_session,
)


def job_for(tmp_path: Path, strategy: Strategy, *, time_limit_s: float = 120.0) -> Job:
    file = tmp_path / "step_of_test.py"
    file.write_text(STEP_FILE)
    with EmulatedDevice() as device:
        _, known = a_session(device)
        row = foresee(strategy, known, PROFILE)
    return Job(
        spec=str(file),
        options=AnalyzeOptions(device="emulated", iterations=3),
        profile=PROFILE,
        strategy=strategy,
        row=row,
        known=dataclasses.replace(known, findings=(), safe_modules=("",), roots={}),
        measure_s=1.0,
        time_limit_s=time_limit_s,
    )


@pytest.mark.parametrize(
    ("strategy", "status", "words"),
    [
        (fakes.OneGraph(), "verified", "equal eager's bit for bit"),
        (fakes.Exiting(), "failed", "exit code 7: the last words"),
        (fakes.Killed(), "failed", "SIGABRT"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_process_of_its_own_gives_a_row_or_the_way_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Strategy, status: str, words: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with own_processes() as running:
        row = in_own_process(running, job_for(tmp_path, strategy), is_last=True)
    assert row.status == status
    assert words in row.reason


def test_the_next_process_waits_until_the_one_before_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing runs before the gate opens, and the time for it is counted from there."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    log = tmp_path / "log.txt"
    monkeypatch.setenv("GRAPHDOCTOR_TEST_LOG", str(log))
    job = job_for(tmp_path, fakes.Logging())
    with own_processes() as running:
        first = in_own_process(running, job, is_last=False)
        waiting = running._next
        assert waiting is not None
        time.sleep(2.0)  # long enough for it to start up, and to run if nothing held it
        assert waiting.popen.poll() is None
        assert len(log.read_text().splitlines()) == 1
        second = in_own_process(running, job, is_last=True)
        assert waiting.popen.poll() is not None
        assert running._next is None
    assert (first.status, second.status) == ("verified", "verified"), (first, second)
    assert [line.split()[1:] for line in log.read_text().splitlines()] == [["nothing"]] * 2
    assert len({line.split()[0] for line in log.read_text().splitlines()}) == 2


def test_a_process_that_hangs_is_ended_its_time_after_its_gate_and_told_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    with own_processes() as running:
        running.start_next()
        time.sleep(1.0)
        start = time.monotonic()
        job = job_for(tmp_path, fakes.Hanging(), time_limit_s=6.0)
        row = in_own_process(running, job, is_last=True)
    assert time.monotonic() - start >= 6.0
    assert row.status == "timed-out"
    assert row.reason == "it did not end within 6 s"
    assert row.location is not None
    assert Path(row.location.file).name == "fake_strategies.py"
