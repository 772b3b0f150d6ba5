"""The stages stand in a row once: what one door of the package learns, every other learns too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor import pipeline
from graphdoctor.device.emulated import EmulatedDevice, EmulationLimit
from graphdoctor.pipeline import (
    Setting,
    analyze_target,
    open_setting,
    proven,
    put_back,
    silent,
    stages,
    study,
)
from graphdoctor.record.place import place
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.sweep import run
from graphdoctor.target import from_object
from graphdoctor.values.errors import UsageError, UserCodeError
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Report
from tests.support.strategy_rows import STEP_FILE
from tests.support.sweeps import sweep_object

EMULATED = AnalyzeOptions(device="emulated", iterations=2, strategies=())


def reads(data: torch.Tensor) -> torch.Tensor:
    return data * data.sum().item()


def analyzed(subject: object, *inputs: object) -> Report:
    return pipeline.analyze(subject, *inputs, device="emulated", iterations=2, strategies=())


def test_a_sweep_learns_what_each_cause_costs_as_an_analysis_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[Report] = []
    row_of = run.row_of

    def noted(batch: int, report: Report, **rest: Any) -> object:
        reports.append(report)
        return row_of(batch, report, **rest)

    monkeypatch.setattr(run, "row_of", noted)
    data = torch.randn(2, 8)
    sweep_object(reads, data, batches=(2,), options=EMULATED)
    (swept,), report = reports, analyzed(reads, data)
    assert swept.findings == report.findings
    assert [finding.cost_us is not None for finding in swept.findings] == [True]


def test_a_sweep_says_of_a_step_without_work_on_the_device_what_an_analysis_says() -> None:
    def idle(data: torch.Tensor) -> torch.Size:
        return data.shape

    with pytest.raises(UsageError) as error:
        analyzed(idle, torch.randn(2, 8))
    sweep = sweep_object(idle, torch.randn(2, 8), batches=(1,), options=EMULATED)
    assert sweep.rows[0].reason == str(error.value)
    assert "put the model and its inputs on the device" in sweep.rows[0].reason


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.first(data))


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_capture_studies_with_the_defaults_of_an_analysis_and_runs_no_later_stage(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[Setting] = []
    studied = stages.study

    def noted(target: Any, setting: Setting) -> object:
        settings.append(setting)
        return studied(target, setting)

    def unwanted(*args: object) -> NoReturn:
        raise AssertionError("capture() shows no costs and measures nothing")

    monkeypatch.setattr(stages, "study", noted)
    for stage in ("with_costs", "capture_and_verify", "time_step", "assemble"):
        monkeypatch.setattr(stages, stage, unwanted)
    with EmulatedDevice():
        model = Halves().cuda().train(mode == "training")
        fast = graphdoctor.capture(model, torch.randn(2, 8, device="cuda"), mode=mode)
    assert fast.explain()
    (setting,) = settings
    assert setting.options == AnalyzeOptions()
    assert setting.profile.name == AnalyzeOptions().gpu


def test_what_cannot_be_emulated_after_the_recording_is_not_verified_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limited(*args: object, **options: object) -> NoReturn:
        raise EmulationLimit("aten.odd has no kernel on the CPU")

    monkeypatch.setattr(stages, "capture_and_verify", limited)
    report = analyzed(lambda data: data * 2, torch.randn(2, 8))
    assert (report.verdict, report.limits) == ("unknown", ("aten.odd has no kernel on the CPU",))


def test_a_report_has_the_time_of_each_stage_in_order_if_asked(tmp_path: Path) -> None:
    file = tmp_path / "timed_stages_of_test.py"
    file.write_text(STEP_FILE)

    def report(**options: Any) -> Report:
        return analyze_target(str(file), AnalyzeOptions(device="emulated", **options), silent)

    timed = report(times_stages=True)
    assert [one.stage for one in timed.stages] == [
        "finding the model",
        "warming up",
        "recording",
        "diagnosing",
        "capturing and verifying",
        "estimating the speedup",
        "trying strategies",
    ]
    assert all(one.wall_s >= 0.0 for one in timed.stages)
    assert sum(one.wall_s for one in timed.stages) > 0.0
    shown = written_as("terminal", timed, Look(show_all=True))
    assert " s: finding the model " in shown
    again = report(strategies=())
    assert again.stages == ()  # the same step gives the same bytes
    assert "finding the model" not in written_as("terminal", again, Look(show_all=True))


@pytest.mark.parametrize(("most", "recorded"), [(1, "1 time"), (3, "1 time")])
def test_a_step_that_raises_in_a_later_call_is_diagnosed_up_to_it(most: int, recorded: str) -> None:
    """Also where it does so before it is warm."""
    calls = [0]

    def step(data: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] > most:
            raise RuntimeError("too much")
        return data * 2

    report = analyzed(step, torch.randn(2, 8))
    assert report.verdict == "unknown" and f"recorded {recorded} and raised" in report.reason
    assert any("from its first call on" in note for note in report.target.notes) == (most < 3)
    assert calls == [0]


def test_a_step_that_raises_in_its_first_call_is_an_error_of_the_user_s() -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("never")

    with pytest.raises(UserCodeError, match="never"):
        analyzed(step, torch.randn(2, 8))


def proved(subject: Callable[..., object], look: Callable[[Any], object]) -> None:
    with open_setting(EMULATED, silent) as setting:
        target = from_object(subject, torch.randn(2, 8))
        with put_back(target):
            placed = place(target, setting.device)
            with proven(study(placed, setting), setting) as (_, evidence):
                look(evidence)


def test_the_graph_is_there_in_the_block_and_given_back_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[Any] = []

    def look(evidence: Any) -> None:
        evidence.captured.step.replay()
        steps.append(evidence.captured.step)

    proved(lambda data: data * 2, look)
    assert steps[0].outputs is None

    def failing(session: object, recording: object, captured: Any, *rest: object) -> NoReturn:
        steps.append(captured.step)
        raise ZeroDivisionError

    monkeypatch.setattr(stages, "time_step", failing)
    with pytest.raises(ZeroDivisionError):
        proved(lambda data: data * 2, look)
    assert steps[1].outputs is None


def test_beside_a_gpu_all_that_is_predicted_is_predicted_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    real = SimpleNamespace(kind="cuda")
    assert Setting(real).profile.name == "h200"  # type: ignore[arg-type]
    with EmulatedDevice() as emulated:
        assert Setting(emulated).profile.name == "h100"
