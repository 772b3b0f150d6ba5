"""The profiler observer: what it counts, and that TensorBoard's own plugin reads what it keeps."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphdoctor.measure.profile import for_tensorboard, profile_step
from graphdoctor.trace import operators_of_events, read_trace
from graphdoctor.values.errors import UsageError
from tests.support.traces import launch_bound


class Step:
    """A training step of two layers that counts its runs."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        self.data = torch.ones(2, 8)
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        self.model(self.data).sum().backward()


def test_the_steps_that_count_are_recorded_and_marked() -> None:
    step = Step()
    found = profile_step(step, steps=2)
    assert step.runs == 3
    names = [found.trace.names[name] for name in found.trace.operators.name]
    assert names.count("aten::addmm") == 2
    marks = [found.trace.names[name] for name in found.trace.annotations.name]
    assert [mark for mark in marks if "Step" in mark] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert found.kept is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has kernels")
def test_without_a_gpu_there_are_no_kernels() -> None:
    assert len(profile_step(Step(), steps=1).trace.device_events) == 0


@pytest.mark.gpu
def test_kernels_are_joined_to_operators_on_a_gpu() -> None:
    data = torch.ones(64, 64, device="cuda")
    trace = profile_step(lambda: data @ data, steps=2).trace
    events = trace.device_events
    owners = operators_of_events(trace)[~trace.named(events, lambda name: "emset" in name)]
    assert {trace.text(trace.operators.name[row]) for row in owners.tolist()} == {"aten::mm"}


def test_no_span_crosses_an_annotation_under_a_dispatch_mode(tmp_path: Path) -> None:
    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # fmt: skip
            return func(*args, **(kwargs or {}))

    step = Step()
    optimizer = torch.optim.SGD(step.model.parameters())

    def train() -> None:
        step()
        optimizer.step()

    with Passing():
        kept = profile_step(train, steps=1, trace_dir=tmp_path).kept
    assert kept is not None
    events = json.loads(gzip.decompress(kept.untouched.read_bytes()))["traceEvents"]
    spans = [
        (event["ts"], event["ts"] + event["dur"], event["name"])
        for event in events
        if event.get("cat") in ("cpu_op", "user_annotation")
    ]
    assert {"Optimizer.step#SGD.step", "aten::addmm"} <= {name for _, _, name in spans}
    assert [
        (outer, inner)
        for start, end, outer in spans
        for begin, finish, inner in spans
        if start < begin < end < finish
    ] == []


def test_an_exception_of_the_step_passes_and_leaves_the_profiler_off(tmp_path: Path) -> None:
    def failing() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        profile_step(failing, trace_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(profile_step(Step(), steps=1).trace.operators)


def test_profiling_is_silent_and_leaves_the_environment_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = dict(os.environ)
    profile_step(Step(), steps=1)
    assert dict(os.environ) == before
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_cannot_be_written_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Cannot write a trace"):
        profile_step(Step(), steps=1, trace_dir=tmp_path / "file")


def test_tensorboards_plugin_loads_the_kept_trace(tmp_path: Path) -> None:
    from torch_tb_profiler.consts import WORKER_PATTERN

    found = profile_step(Step(), steps=2, trace_dir=tmp_path / "new")
    assert found.kept is not None
    path = found.kept.tensorboard
    assert path.parent == tmp_path / "new"
    match = WORKER_PATTERN.match(path.name)
    assert match is not None
    assert match[1].endswith(f"_{os.getpid()}")
    kept, seen = read_trace(path).operators, found.trace.operators
    assert len(kept) > 0
    assert kept.start_ns.tolist() == seen.start_ns.tolist()
    profile = _tensorboard_profile(path)
    assert "overview" in profile["views"].lower()
    assert "aten::addmm" in profile["operators"]
    assert profile["steps"] == ["1", "2"]


@pytest.mark.filterwarnings("ignore:The copy keyword")
def test_tensorboard_shows_device_times_only_with_the_rewritten_categories(tmp_path: Path) -> None:
    content = launch_bound(5).write(tmp_path / "raw.json").read_bytes()
    shown = {}
    for name, data in (("raw", content), ("kept", for_tensorboard(content))):
        path = tmp_path / f"{name}.pt.trace.json.gz"
        path.write_bytes(gzip.compress(data))
        shown[name] = _tensorboard_profile(path)["device_us"]
    assert shown == {"raw": 0, "kept": 10}


def test_rewriting_changes_categories_and_nothing_else(tmp_path: Path) -> None:
    document = launch_bound(2).document()
    document["traceEvents"][1]["name"] = 'cat": "cuda_runtime'
    rewritten = json.loads(for_tensorboard(json.dumps(document).encode()))
    for before, after in zip(document["traceEvents"], rewritten["traceEvents"], strict=True):
        assert {**before, "cat": ""} == {**after, "cat": ""}
        assert after["cat"] == {"cuda_runtime": "Runtime"}.get(before["cat"], before["cat"])


def _tensorboard_profile(path: Path) -> dict[str, Any]:
    """What torch-tb-profiler makes of the file, by its own parser, as its server would."""
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    data = RunProfileData.parse("worker", 1, str(path), str(path.parent))
    profile = RunGenerator("worker", 1, data).generate_run_profile()
    return {
        "views": str(profile.views),
        "operators": {operator.name for operator in data.op_list_groupby_name},
        "device_us": sum(operator.self_device_duration for operator in data.op_list_groupby_name),
        "steps": data.steps_names,
    }
