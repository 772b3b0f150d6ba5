"""A real TensorBoard on loopback, with its profiler plugin: what it shows of the folders that are left for it."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphdoctor.measure.profile import for_tensorboard
from graphdoctor.pipeline import analyze_target
from graphdoctor.trace.read.names import kept_trace
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import Report
from tests.support.regimes import RegimeTrace
from tests.support.tensorboard_server import TensorBoard, tensorboard

HERE = Path(__file__).parents[1]
MODEL = HERE.parent / "sample_models/dynamic_branch.py"
REAL = HERE / "real/h100_bert_small_cut.json.gz"
PROFILER = "/data/plugin/pytorch_profiler"


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def report(logdir: Path) -> Report:
    options = AnalyzeOptions(device="emulated", trace_dir=str(logdir / "model"))
    return analyze_target(str(MODEL), options, lambda doing: None)


@pytest.fixture(scope="module")
def server(
    logdir: Path, report: Report, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TensorBoard]:
    """Of a model on the emulated device, and of a GPU: a real eager trace, and a made one of a graph."""
    keep(logdir / "gpu/eager", gzip.decompress(REAL.read_bytes()))
    made = io.StringIO()
    RegimeTrace("graph", kernels=40, steps=3).write(made)
    keep(logdir / "gpu/captured", made.getvalue().encode())
    with tensorboard(logdir, tmp_path_factory.mktemp("server")) as running:
        yield running


def keep(folder: Path, content: bytes) -> None:
    """As `--trace-dir` does: the untouched trace lies beside the one for the plugin."""
    folder.mkdir(parents=True)
    kept = kept_trace(folder, "worker.of.a.host", 1_700_000_000_000_000_000)
    kept.tensorboard.write_bytes(gzip.compress(for_tensorboard(content)))
    kept.untouched.write_bytes(gzip.compress(content))


def profiler(server: TensorBoard, route: str, run: str, view: str, **query: str) -> Any:
    """One page of the plugin, of the only worker and span that the run has."""
    (worker,) = server.ask(f"{PROFILER}/workers", run=run, view=view)
    (span,) = server.ask(f"{PROFILER}/spans", run=run, worker=worker)
    where = {"run": run, "worker": worker, "span": span, "view": view}
    return server.ask(PROFILER + route, **where, **query)


def share(overview: Any, part: str) -> float:
    """Per cent of the step's time, as the Overview shows it."""
    (row,) = (row for row in overview["performance"][0]["children"] if row["name"] == part)
    return float(row["extra"])


def all_runs(server: TensorBoard) -> list[str]:
    def is_loaded(answer: Any) -> bool:
        return not answer["loading"] and len(answer["runs"]) >= 3

    found: list[str] = server.wait_for(f"{PROFILER}/runs", is_loaded)["runs"]
    return found


def test_eager_and_captured_are_runs_and_the_untouched_copies_are_not(server: TensorBoard) -> None:
    assert sorted(all_runs(server)) == ["gpu/captured", "gpu/eager", "model/eager"]
    for run in all_runs(server):
        assert len(server.ask(f"{PROFILER}/workers", run=run, view="Overview")) == 1


def test_the_overview_of_a_real_gpu_has_runtime_and_kernels(server: TensorBoard) -> None:
    all_runs(server)
    overview = profiler(server, "/overview", "gpu/eager", "Overview")
    assert {"title": "Device Type", "value": "GPU"} in overview["environments"]
    assert share(overview, "Runtime") > 5
    assert share(overview, "Kernel") > 5


def test_operators_of_a_real_gpu_have_device_time_and_their_kernels(server: TensorBoard) -> None:
    all_runs(server)
    table = profiler(server, "/operation/table", "gpu/eager", "Operator", group_by="Operation")
    device_us = {row["name"]: row["device_total_duration"] for row in table["data"]}
    assert device_us["aten::addmm"] > 0
    assert sum(row["device_self_duration"] for row in table["data"]) > 300
    kernels = profiler(server, "/kernel/table", "gpu/eager", "Kernel")
    columns = [column["name"] for column in kernels["data"]["columns"]]
    owners = {row[columns.index("Operator")] for row in kernels["data"]["rows"]}
    assert "aten::addmm" in owners
    assert "CallTreeRoot" not in owners


def test_a_captured_run_shows_its_kernels(server: TensorBoard) -> None:
    all_runs(server)
    overview = profiler(server, "/overview", "gpu/captured", "Overview")
    assert share(overview, "Kernel") > 50
    assert share(overview, "Runtime") > 0


def test_the_analysis_of_a_model_shows_its_operators(server: TensorBoard) -> None:
    all_runs(server)
    table = profiler(server, "/operation/table", "model/eager", "Operator", group_by="Operation")
    assert "aten::addmm" in {row["name"] for row in table["data"]}


def test_the_report_is_a_page_of_text(server: TensorBoard, report: Report) -> None:
    tags = server.wait_for("/data/plugin/text/tags", lambda answer: "model/eager" in answer)
    (tag,) = tags["model/eager"]
    assert tag.startswith("graphdoctor/report")
    (entry,) = server.ask("/data/plugin/text/text", run="model/eager", tag=tag)
    assert f"<h1>dynamic_branch: {report.verdict}</h1>" in entry["text"]
    for finding in report.findings:
        assert f"<td>{finding.rule} {finding.name}</td>" in entry["text"]
    assert "speedup, predicted" in entry["text"]
    assert "the device was emulated" in entry["text"]
    assert "PYTORCH_PROFILER stays empty" in entry["text"]


def test_figures_of_the_report_are_scalars(server: TensorBoard, report: Report) -> None:
    tags = server.wait_for("/data/plugin/scalars/tags", lambda answer: "model/eager" in answer)
    assert report.estimate is not None
    expected = {
        "speedup/predicted": report.estimate.speedup.mid,
        "step/predicted_us": report.estimate.eager_us.mid,
        "step/predicted_with_graphs_us": report.estimate.graph_us.mid,
        "step/predicted_launch_bound_share": report.estimate.launch_bound_share.mid,
        "findings/unsafe": 1.0,
        "findings/slow": 0.0,
    }
    assert expected.keys() == tags["model/eager"].keys()
    for tag, value in expected.items():
        (point,) = server.ask("/data/plugin/scalars/scalars", run="model/eager", tag=tag)
        assert point[2] == pytest.approx(value, rel=5e-3), tag  # three digits


def test_both_plugins_are_shown_as_active(server: TensorBoard) -> None:
    all_runs(server)
    server.wait_for(
        "/data/plugins_listing",
        lambda answer: all(
            answer[name]["enabled"] for name in ("pytorch_profiler", "scalars", "text")
        ),
    )


def test_the_page_of_the_plugin_is_served(server: TensorBoard) -> None:
    assert b"<html" in server.page(f"{PROFILER}/index.html").lower()
    assert b"<tb-webapp" in server.page("/")
