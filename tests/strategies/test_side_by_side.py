"""The strategies of one step side by side: which are tried, for how long, and what the report says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphdoctor import strategies as strategies_package
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.estimate import Calls
from graphdoctor.pipeline import analyze, analyze_target
from graphdoctor.strategies import choice, side_by_side
from graphdoctor.strategies.own_process import Job
from graphdoctor.strategies.strategy import Known, Strategy
from graphdoctor.strategies.whole import Whole
from graphdoctor.values.errors import Interrupted, UsageError
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Report
from graphdoctor.values.speed import StrategyOutcome
from tests.support import fake_strategies as fakes
from tests.support.strategy_rows import (
    STEP_FILE,
    outcome,
)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a test say which strategies there are."""

    def these(*strategies: Strategy) -> None:
        monkeypatch.setattr(strategies_package, "STRATEGIES", strategies)
        monkeypatch.setattr(choice, "STRATEGIES", strategies)

    return these


def hazardous() -> object:
    layer = torch.nn.Linear(8, 8).cuda()

    def step(data: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            data = layer(data)
            for _ in range(12):
                data = torch.relu(data + 1)
            float(data.sum())
            for _ in range(12):
                data = torch.relu(data + 1)
            return data

    return step, (torch.randn(4, 8, device="cuda"),)


def test_a_report_has_a_row_for_each_and_recommends_the_fastest_that_was_verified(
    listed: Any,
) -> None:
    listed(fakes.Wrong(), fakes.Fake(), fakes.Refusing(), fakes.Compiling(), fakes.Rounding())
    report = analyze(hazardous, device="emulated")
    assert [(row.strategy, row.status) for row in report.strategies] == [
        ("wrong", "wrong"),
        ("fake", "verified"),
        ("refusing", "refused"),
        ("compiling", "planned"),
    ]  # a comparator is not tried without a GPU, unless it is asked for
    advice = report.recommendation
    assert advice is not None
    assert (advice.strategy, advice.code) == ("fake", "fast = step\n")
    assert "prediction" in advice.sentence
    assert advice.then.startswith("Only GD101 (test_side_by_side.py:")
    assert "blocks whole-step capture" in advice.then


def test_no_fix_gains_anything_in_a_step_that_a_gpu_does_not_run(listed: Any) -> None:
    def mixed() -> object:
        left_behind = torch.randn(4, 8)

        def step(data: torch.Tensor) -> torch.Tensor:
            data = data * left_behind
            return data + float(data.sum())

        return step, (torch.randn(4, 8, device="cuda"),)

    listed(fakes.Fake())
    report = analyze(mixed, device="emulated")
    assert not report.runs_on_gpu and report.recommendation is not None
    assert report.recommendation.next_fix is None
    assert "Predicted speedup after" not in report.recommendation.then


def test_none_of_them_means_none(listed: Any) -> None:
    listed(fakes.Fake())
    report = analyze(hazardous, device="emulated", strategies=())
    assert report.strategies == ()
    assert report.recommendation is None


def test_an_unknown_name_is_refused_with_the_nearest_one(listed: Any) -> None:
    listed(fakes.Fake(), fakes.Rounding())
    with pytest.raises(
        UsageError, match=r"no strategy 'fakes', did you mean 'fake'\? \(there are fake,"
    ):
        analyze(hazardous, device="emulated", strategies=("fakes",))


def test_what_the_budget_does_not_reach_says_so(listed: Any) -> None:
    listed(fakes.Fake(), fakes.Wrong())
    report = analyze(hazardous, device="emulated", budget_s=1e-9)
    assert [row.status for row in report.strategies] == ["timed-out", "timed-out"]
    assert "not tried within the budget of 1e-09 s" in report.strategies[0].reason
    assert report.recommendation is not None
    assert report.recommendation.strategy == "none"


def test_a_whole_step_that_was_captured_is_not_tried_again_nor_bettered() -> None:
    class Named(fakes.Fake):
        name = "other"

    def safe() -> object:
        layer = torch.nn.Linear(8, 8).cuda()
        return layer.eval(), (torch.randn(4, 8, device="cuda"),)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "STRATEGIES", (Whole(), Named()))
        patch.setattr(Whole, "build", None)
        report = analyze(safe, device="emulated")
        asked = analyze(safe, device="emulated", strategies=("other", "whole"))
    whole, other = report.strategies
    assert (whole.status, other.status) == ("verified", "unfit")
    assert whole.verification == report.captures[0].verification
    assert report.estimate is not None
    assert whole.predicted == report.estimate.speedup
    assert other.reason == "the whole step is already one graph"
    assert [row.status for row in asked.strategies] == ["verified", "verified"]


def test_a_refused_whole_step_keeps_the_finding_as_its_reason() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "STRATEGIES", (Whole(),))
        (row,) = analyze(hazardous, device="emulated").strategies
    assert row.status == "refused"
    assert "GD101" in row.reason
    assert row.location is not None
    assert row.predicted is None


@pytest.fixture
def believed_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The analysis takes the emulated device for a real one; other processes see what it is."""

    @contextmanager
    def open_device(choice: object, profile: object) -> Iterator[EmulatedDevice]:
        with EmulatedDevice() as emulated:
            monkeypatch.setattr(emulated, "kind", "cuda", raising=False)
            yield emulated

    monkeypatch.setattr("graphdoctor.pipeline.setting.open_device", open_device)
    monkeypatch.setattr("graphdoctor.measure.speed._BUDGET_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.mark.usefixtures("believed_gpu")
def test_on_a_gpu_each_strategy_but_the_captured_step_goes_to_a_process_of_its_own(
    listed: Any, tmp_path: Path
) -> None:
    listed(Whole(), fakes.Exiting(), fakes.OneGraph())
    file = tmp_path / "gpu_step_of_test.py"
    file.write_text(STEP_FILE)
    doing: list[str] = []
    names = ("whole", "exiting", "one-graph")
    report = analyze_target(str(file), AnalyzeOptions(strategies=names), doing.append)
    whole, exiting, graph = report.strategies
    assert (whole.status, exiting.status, graph.status) == ("verified", "failed", "verified")
    assert whole.measurement == report.measurement
    assert whole.measurement is not None
    assert whole.prepare_s is not None
    assert whole.predicted is not None
    assert "exit code 7" in exiting.reason
    assert "trying exiting (1 of 2)" in doing
    assert report.recommendation is not None
    assert report.recommendation.strategy in ("whole", "none")  # nothing is faster here for sure


@pytest.mark.usefixtures("believed_gpu")
def test_the_last_that_fits_has_all_that_is_left_of_the_budget_and_nothing_waits_behind_it(
    listed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool, float]] = []

    def run(processes: object, job: Job, *, is_last: bool) -> StrategyOutcome:
        asked.append((job.strategy.name, is_last, job.time_limit_s))
        return job.row

    monkeypatch.setattr(side_by_side, "in_own_process", run)
    listed(fakes.Fake(), fakes.OneGraph(), fakes.Unfit())
    file = tmp_path / "last_step_of_test.py"
    file.write_text(STEP_FILE)
    names = ("fake", "one-graph", "unfit")
    analyze_target(str(file), AnalyzeOptions(strategies=names), lambda doing: None)
    assert [(name, is_last) for name, is_last, _ in asked] == [("fake", False), ("one-graph", True)]
    assert asked[0][2] == pytest.approx(60.0, rel=0.1)
    assert asked[1][2] == pytest.approx(120.0, rel=0.1)


@pytest.mark.usefixtures("believed_gpu")
def test_an_object_on_a_gpu_is_compared_in_this_process(listed: Any) -> None:
    listed(Whole(), fakes.OneGraph(), fakes.Unfit())
    model = torch.nn.Linear(8, 8).eval()
    before = model.weight.clone()
    names = ("whole", "one-graph", "unfit")
    report = analyze(model, torch.randn(4, 8), strategies=names)
    assert [row.status for row in report.strategies] == ["verified", "verified", "unfit"]
    assert report.strategies[1].measurement is not None
    assert torch.equal(model.weight, before)


@pytest.mark.usefixtures("believed_gpu")
def test_an_object_is_not_compiled_for_longer_than_is_left(listed: Any) -> None:
    class Compiling(fakes.OneGraph):
        name = "compiling"
        compiles = True

    listed(Compiling())
    model = torch.nn.Linear(8, 8).eval()
    given = torch.randn(4, 8)
    late = analyze(model, given, strategies=("compiling",), budget_s=5.0).strategies[0]
    assert late.status == "timed-out" and "is expected to take 25 s" in late.reason
    assert analyze(model, given, strategies=("compiling",)).strategies[0].status == "verified"


def test_the_analysed_model_is_as_it_was(listed: Any, tmp_path: Path) -> None:
    listed(fakes.Spoiling(), fakes.Fake())
    model = torch.nn.Linear(4, 4)
    before, given = model.weight.clone(), torch.randn(2, 4)
    generator = torch.get_rng_state()
    report = analyze(model, given, device="emulated", strategies=("spoiling", "fake"))
    assert [row.status for row in report.strategies] == ["verified", "verified"]
    assert torch.equal(model.weight, before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.training


def test_a_file_is_compared_as_an_object_is(listed: Any, tmp_path: Path) -> None:
    listed(fakes.Fake())
    file = tmp_path / "file_of_test.py"
    file.write_text(STEP_FILE)
    options = AnalyzeOptions(device="emulated", strategies=("fake",))
    report = analyze_target(str(file), options, lambda doing: None)
    assert [row.status for row in report.strategies] == ["verified"]


def test_what_compiles_and_is_predicted_to_be_slower_is_tried_only_when_it_is_asked_for(
    listed: Any,
) -> None:
    class Slower(fakes.Fake):
        name = "slower"
        compiles = True

        def calls(self, known: Any) -> Calls:
            return Calls(segment=1000)

    class Quick(Slower):
        name = "quick"
        compiles = False  # quick to try, so that it is

    listed(Slower(), Quick())
    slower, quick = analyze(hazardous, device="emulated").strategies
    assert (slower.status, quick.status) == ("unfit", "verified")
    assert slower.reason.endswith("; use `--strategies slower` to run it anyway")
    asked = analyze(hazardous, device="emulated", strategies=("slower",))
    assert asked.strategies[0].status == "planned"


def test_compiled_kernels_are_not_promised_where_the_same_graphs_of_eagers_are_refused() -> None:
    optimizer = torch.optim.SGD((layer := torch.nn.Linear(8, 8)).parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = layer(x).pow(2).sum()
        loss = loss * 2 if loss.item() > 1e9 else loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    report = analyze((step, (torch.randn(4, 8),)), device="emulated")
    rows = {row.strategy: row for row in report.strategies}
    assert rows["split-step"].status == "refused"
    assert rows["compiled-split"].status == "unfit"
    assert "split-step" in rows["compiled-split"].reason
    assert report.recommendation is not None
    assert "compiled-split" not in report.recommendation.then


@pytest.mark.usefixtures("believed_gpu")
def test_a_budget_that_is_too_small_for_all_is_said_at_once(listed: Any, tmp_path: Path) -> None:
    listed(Whole(), fakes.OneGraph(), fakes.Exiting())
    file = tmp_path / "little_time_of_test.py"
    file.write_text(STEP_FILE)
    doing: list[str] = []
    names = ("one-graph", "exiting")
    options = AnalyzeOptions(strategies=names, budget_s=1e-9)
    rows = analyze_target(str(file), options, doing.append).strategies
    assert "trying one-graph (1 of 2; all take about --budget 1m)" in doing
    assert [row.status for row in rows] == ["timed-out", "timed-out"]
    assert all("all take about --budget 1m" in row.reason for row in rows)


def test_the_report_is_shown_before_each_trial(listed: Any, tmp_path: Path) -> None:
    class Later(fakes.Fake):
        name = "later"

    listed(fakes.Fake(), Later())
    file = tmp_path / "model.py"
    file.write_text(STEP_FILE)
    seen: list[Report] = []
    options = AnalyzeOptions(device="emulated", strategies=("fake", "later"))
    report = analyze_target(str(file), options, lambda stage: None, seen.append)
    rows = [[(row.status, row.reason) for row in one.strategies] for one in seen]
    waits = ("planned", "not tried yet")
    verified = ("verified", report.strategies[0].reason)
    assert rows == [[waits, waits], [verified, waits]]
    assert all((one.verdict, one.estimate) == ("safe", report.estimate) for one in seen)
    advice = [one.recommendation for one in seen]
    assert advice[0] is not None and advice[1] is not None
    assert advice[0].sentence == "Keep eager: no strategy is verified yet."
    assert advice[1].strategy == "fake"


@pytest.mark.gpu
def test_on_a_gpu_the_captured_time_is_shown_before_strategies_are_tried(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(STEP_FILE)
    seen: list[Report] = []
    report = analyze_target(str(file), AnalyzeOptions(), lambda stage: None, seen.append)
    first = seen[0]
    assert (first.verdict, first.measurement) == (report.verdict, report.measurement)
    assert first.measurement is not None
    verified = [row.strategy for row in first.strategies if row.status == "verified"]
    assert verified == ["whole"]  # by the capture that gave the time
    assert len(seen) > 1


def test_ctrl_c_keeps_the_verdict_the_findings_and_the_rows_that_are_known(listed: Any) -> None:
    class Stopped(fakes.Fake):
        name = "stopped"

        def build(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyboardInterrupt

    class Later(fakes.Fake):
        name = "later"

    listed(fakes.Fake(), Stopped(), Later(), fakes.Compiling())
    with pytest.raises(Interrupted) as caught:
        analyze(hazardous, device="emulated", strategies=("fake", "stopped", "later", "compiling"))
    report = caught.value.report
    assert report.verdict == "partly-safe"
    assert "GD101" in [finding.rule for finding in report.findings]
    assert [(row.strategy, row.status, row.reason) for row in report.strategies[:3]] == [
        ("fake", "verified", "all 4 tensors equal eager's bit for bit"),
        ("stopped", "timed-out", "interrupted"),
        ("later", "timed-out", "interrupted"),
    ]
    assert report.strategies[3].status == "planned"


def test_ctrl_c_before_the_first_strategy_keeps_the_report(listed: Any) -> None:
    class Stopped(fakes.Fake):
        def reason_against(self, known: Known) -> str:
            raise KeyboardInterrupt

    listed(Stopped())
    with pytest.raises(Interrupted) as caught:
        analyze(hazardous, device="emulated")
    report = caught.value.report
    assert (report.verdict, report.strategies) == ("partly-safe", ())


def test_a_strategy_is_measured_for_four_seconds_or_a_sixth_of_its_time() -> None:
    assert measured_for(budget_s=600.0) == 4.0
    assert measured_for(budget_s=6.0) == pytest.approx(0.5, rel=0.01)


def measured_for(*, budget_s: float) -> float:
    iteration: Any = SimpleNamespace(ops=())
    known = Known("inference", roots={}, findings=(), safe_modules=(), iteration=iteration)
    options = AnalyzeOptions(budget_s=budget_s)
    target = SimpleNamespace(kept_inputs=())
    session = SimpleNamespace(target=target)
    evidence: Any = SimpleNamespace(session=session, speed=SimpleNamespace(estimate=None))
    deadline_s = time.monotonic() + budget_s
    some: Any = None
    contest = side_by_side.Contest(evidence, known, options, some, "f.py", deadline_s, some)
    row = outcome("fake", status="planned")
    return contest.job("f.py", fakes.Fake(), row, [fakes.Wrong()]).measure_s
