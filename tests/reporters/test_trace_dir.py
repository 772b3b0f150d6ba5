"""`analyze --trace-dir`: the folders that it leaves, what is drawn into the trace, and without TensorBoard."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.whole_step import CapturedStep, capture_whole_step
from graphdoctor.measure.profile import Profile
from graphdoctor.measure.speed import CAPTURED, EAGER, ProfiledRun, _captured_run
from graphdoctor.pipeline import analyze_target
from graphdoctor.record import prepare
from graphdoctor.reporters.plain_json import parsed
from graphdoctor.reporters.tensorboard.write import (
    _next_number,
    _write_events,
    page_of,
    scalars_of,
    steps_of,
)
from graphdoctor.target import from_object
from graphdoctor.trace.annotate import PROCESS
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Report
from tests.support.reports import PARTLY_SAFE, SAFE
from tests.support.traces import launch_bound

HERE = Path(__file__).parents[1]
SAMPLES = HERE.parent / "sample_models"


def analyzed(sample: str, folder: Path) -> Report:
    options = AnalyzeOptions(device="emulated", trace_dir=str(folder))
    return analyze_target(str(SAMPLES / sample), options, lambda doing: None)


def annotated(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "eager").glob("*.annotated.json.gz")
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def test_without_a_gpu_there_is_an_eager_run_and_no_captured_one(tmp_path: Path) -> None:
    report = analyzed("gelu.py", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eager", "strategies"]
    *traces, saved = map(Path, report.trace_files)
    endings = sorted(path.name.split(".", 2)[2] for path in traces)
    assert endings == ["annotated.json.gz", "perfetto.json.gz", "pt.trace.json.gz"]
    assert saved == tmp_path / "eager/graphdoctor.json"
    again = parsed(saved.read_bytes(), Report, name=saved.name)
    assert again.strategies == report.strategies != () and again.trace_files == report.trace_files
    assert len(points(tmp_path / "strategies")["strategies/speedup_predicted"]) > 1
    assert all(Path(path).is_file() for path in report.trace_files)
    assert len(list((tmp_path / "eager").glob("events.out.tfevents.*"))) == 1


def test_a_finding_points_at_the_operator_that_it_is_about(tmp_path: Path) -> None:
    report = analyzed("dynamic_branch.py", tmp_path)
    events = annotated(tmp_path)
    (finding,) = report.findings
    spans = [event for event in events if event.get("cat") == PROCESS and event["ph"] == "X"]
    mine = [span for span in spans if span["name"] == f"{finding.rule} {finding.name}"]
    assert len(mine) == 3, "one for each profiled step"
    assert finding.location is not None
    line = f"{finding.location.file}:{finding.location.line}"
    assert {span["args"]["line"] for span in mine} == {line}
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    ends = [event for event in events if event["ph"] == "f" and event.get("cat") == PROCESS]
    assert len(ends) == 3
    for end in ends:
        around = [
            operator
            for operator in operators
            if (operator["pid"], operator["tid"]) == (end["pid"], end["tid"])
            and operator["ts"] < end["ts"] < operator["ts"] + operator["dur"]
        ]
        innermost = min(around, key=lambda operator: operator["dur"])
        assert innermost["name"] == "aten::_local_scalar_dense"


@pytest.mark.parametrize("sample", ["dynamic_branch.py", "adam_training.py"])
def test_regions_are_spans_that_hold_their_operators(tmp_path: Path, sample: str) -> None:
    report = analyzed(sample, tmp_path)
    events = annotated(tmp_path)
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    spans = [event for event in events if event.get("cat") == PROCESS and event["ph"] == "X"]
    regions = [span for span in spans if span["name"].startswith("region")]
    ran = [region for region in report.regions if 0 in region.iterations]
    assert len(regions) == len(ran) * len(steps)
    for span in regions:
        inside = [
            step
            for step in steps
            if step["ts"] <= span["ts"] and span["ts"] + span["dur"] <= step["ts"] + step["dur"]
        ]
        assert len(inside) == 1


@pytest.mark.parametrize("sample", ["dynamic_branch.py", "moe.py"])
def test_spans_of_a_track_do_not_cross(tmp_path: Path, sample: str) -> None:
    analyzed(sample, tmp_path)
    tracks: dict[int, list[tuple[float, float]]] = {}
    for event in annotated(tmp_path):
        if event.get("cat") == PROCESS and event["ph"] == "X":
            span = (event["ts"], event["ts"] + event["dur"])
            tracks.setdefault(event["tid"], []).append(span)
    assert tracks
    for spans in tracks.values():
        for start, end in spans:
            for other_start, other_end in spans:
                assert not start < other_start < end < other_end


def test_torch_s_validator_accepts_the_copy_with_findings(tmp_path: Path) -> None:
    validator = pytest.importorskip("torch.profiler._trace_validator", exc_type=ImportError)
    analyzed("dynamic_branch.py", tmp_path)
    (path,) = (tmp_path / "eager").glob("*.annotated.json.gz")
    assert validator.validate_trace(str(path)) == (True, [])


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of each point of a curve, as TensorBoard reads the event files: those of a second in any order."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return {
        tag: sorted((event.step, event.value) for event in found.Scalars(tag))
        for tag in found.Tags()["scalars"]
    }


def test_analyses_into_one_folder_make_curves(tmp_path: Path) -> None:
    for sample in ("dynamic_branch.py", "gelu.py", "gelu.py"):
        analyzed(sample, tmp_path)
    curves = points(tmp_path / "eager")
    assert len(curves) == 6
    assert {tuple(step for step, _ in curve) for curve in curves.values()} == {(0, 1, 2)}
    assert [value for _, value in curves["findings/unsafe"]] == [1, 0, 0]
    before, after, again = (value for _, value in curves["step/predicted_us"])
    assert before != after == again


def test_a_run_that_begins_later_has_the_number_of_the_analysis(tmp_path: Path) -> None:
    eager, captured = tmp_path / EAGER, tmp_path / CAPTURED
    for folders in ([eager], [eager, captured]):
        number = _next_number(folders)
        for folder in folders:
            _write_events(folder, number, [("step/measured_us", 5.0)], None)
    assert points(eager)["step/measured_us"] == [(0, 5.0), (1, 5.0)]
    found = EventAccumulator(str(eager))
    found.Reload()
    assert found.SummaryMetadata("step/measured_us").summary_description.startswith("Wall time")
    assert points(captured)["step/measured_us"] == [(1, 5.0)]


@pytest.mark.parametrize("kept", [0, 7, -3])
def test_a_broken_event_file_is_no_obstacle_to_the_next_one(tmp_path: Path, kept: int) -> None:
    _write_events(tmp_path, 4, [("step/measured_us", 5.0)], None)
    (file,) = tmp_path.glob("events.out.tfevents.*")
    file.write_bytes(file.read_bytes()[:kept])
    assert _next_number([tmp_path]) == 0
    _write_events(tmp_path, 0, [("step/measured_us", 6.0)], None)


def test_without_tensorboard_there_are_traces_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    report = analyzed("gelu.py", tmp_path)
    (sentence,) = (limit for limit in report.limits if "TensorBoard" in limit)
    assert "pip install 'graphdoctor[tensorboard]'" in sentence
    assert len(report.trace_files) == 4
    assert not list((tmp_path / "eager").glob("events.out.tfevents.*"))


def test_without_a_trace_folder_nothing_is_written(tmp_path: Path) -> None:
    report = analyze_target(
        str(SAMPLES / "gelu.py"), AnalyzeOptions(device="emulated"), lambda doing: None
    )
    assert report.trace_files == ()


class Step(torch.nn.Module):
    """Counts on the device how often it ran, as a cache with a position does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("runs", torch.zeros((), dtype=torch.long))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        result: torch.Tensor = self.linear(data)
        return result


def test_replays_are_a_run_of_their_own_and_leave_the_state_as_it_was(tmp_path: Path) -> None:
    with EmulatedDevice() as device:
        model = Step().cuda()
        session = prepare(from_object(model, torch.ones(2, 4).cuda()), device, iterations=4)
        step = capture_whole_step(session.target, warmup=0)
        assert isinstance(step, CapturedStep)
        before = int(model.runs)
        found = _captured_run(session, step, AnalyzeOptions(trace_dir=str(tmp_path)))
        assert int(model.runs) == before
    assert found.name == CAPTURED
    assert len(steps_of(found.profile.trace)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["captured"]
    assert len(list((tmp_path / "captured").glob("*.pt.trace.json.gz"))) == 1


def run_named(name: str) -> ProfiledRun:
    trace = launch_bound(5, steps=2).trace()
    return ProfiledRun(name, Profile(trace))


def test_scalars_are_of_a_run_s_own_trace_and_of_the_report_where_they_are_its() -> None:
    eager, captured = (dict(scalars_of(run_named(name), SAFE)) for name in (EAGER, CAPTURED))
    for found in (eager, captured):
        assert found["trace/launches"] == 5
        assert found["trace/device_busy_us"] == pytest.approx(10.0)
        assert len(found) <= 11
        assert 0 < found["trace/launch_bound_share"] < 1
    assert SAFE.measurement is not None
    assert eager["step/measured_us"] == SAFE.measurement.eager_us
    assert captured["step/measured_us"] == SAFE.measurement.graph_us
    assert eager["speedup/measured"] == SAFE.measurement.speedup
    assert "speedup/measured" not in captured


def test_the_page_shows_text_of_a_model_and_never_obeys_it() -> None:
    page = page_of(PARTLY_SAFE, [run_named(EAGER)])
    assert page.startswith("# ")
    for finding in PARTLY_SAFE.findings:
        assert finding.rule in page
    assert "no run of a captured graph" in page
    both = page_of(PARTLY_SAFE, [run_named(EAGER), run_named(CAPTURED)])
    assert "no run of a captured graph" not in both


@pytest.mark.gpu
def test_on_a_gpu_eager_and_replay_are_two_runs(tmp_path: Path) -> None:
    options = AnalyzeOptions(device="cuda", trace_dir=str(tmp_path))
    report = analyze_target(str(SAMPLES / "gelu.py"), options, lambda doing: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["captured", "eager", "strategies"]
    assert len(report.trace_files) == 6
