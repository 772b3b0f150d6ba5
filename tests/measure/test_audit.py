"""Replays that use memory which was freed or rebound are reported by line; healthy programs are not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import jsonschema
import pytest
import torch

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.values.audited import AuditReport
from tests.support import warm
from tests.support.emulated import captured
from tests.support.schemas import schema_of


@pytest.fixture(autouse=True, params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def on_device(request: pytest.FixtureRequest) -> Iterator[None]:
    with EmulatedDevice() if request.param == "emulated" else nullcontext():
        ones = torch.ones(4, 4, device="cuda")
        ones @ ones  # cuBLAS makes its handle, which it may not do in a capture
        yield


def model() -> torch.nn.Linear:
    return torch.nn.Linear(4, 4, device="cuda")


def audited(program: Callable[[], object]) -> AuditReport:
    with torch.no_grad(), graphdoctor.audit() as found:
        program()
    return found.report()


def weight_sync() -> None:
    policy, x = model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    graph.replay()
    policy.weight = torch.nn.Parameter(torch.zeros(4, 4, device="cuda"))
    graph.replay()  # <- stale


def assigned_checkpoint() -> None:
    policy, x = model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    policy.load_state_dict({k: v.clone() for k, v in policy.state_dict().items()}, assign=True)
    graph.replay()  # <- stale


def replaced_data() -> None:
    policy, x = model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    policy.weight.data = torch.zeros(4, 4, device="cuda")
    graph.replay()  # <- stale


class Engine:
    """Serves with a cache that it may reallocate."""

    def __init__(self) -> None:
        self.cache = torch.zeros(8, 4, device="cuda")
        self.token = torch.ones(4, device="cuda")
        self.graph, self.out = captured(lambda: self.cache.add_(self.token).sum())


def reallocated_cache() -> None:
    engine = Engine()
    engine.graph.replay()
    engine.cache = torch.zeros(16, 4, device="cuda")
    engine.graph.replay()  # <- stale


FAULTS = {
    weight_sync: ("rebound", "policy.weight"),
    assigned_checkpoint: ("rebound", "policy.weight"),
    replaced_data: ("rebound", "policy.weight"),
    reallocated_cache: ("freed", "self.cache"),
}


@pytest.mark.parametrize("program", FAULTS, ids=lambda program: program.__name__)
def test_a_planted_fault_is_found_with_its_name_and_line(program: Callable[[], None]) -> None:
    found = audited(program).stale_tensors
    stale = next(each for each in found if each.name == FAULTS[program][1])
    assert stale.reason == FAULTS[program][0]
    assert stale.replayed_at is not None and stale.used_at is not None
    lines = Path(__file__).read_text().splitlines()
    assert lines[stale.replayed_at.line - 1].endswith("# <- stale")
    assert "captured(lambda" in lines[stale.used_at.line - 1]


def test_a_model_that_is_converted_after_make_graphed_callables() -> None:
    with graphdoctor.audit() as audit:
        net = model()
        x = torch.ones(2, 4, device="cuda")
        call = torch.cuda.make_graphed_callables(net, (x,))
        call(x).sum().backward()
        assert audit.report().stale_tensors == ()
        net.to(torch.float64)
        call(x)  # <- stale
    found = audit.report().stale_tensors
    assert {each.name for each in found} >= {"net.weight", "net.bias"}
    lines = Path(__file__).read_text().splitlines()
    places = [each.replayed_at for each in found]
    assert all(place and lines[place.line - 1].endswith("# <- stale") for place in places)


def copied_weights() -> None:
    policy, other, x = model(), model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    for _ in range(2):
        policy.load_state_dict(other.state_dict())
        graph.replay()


def copied_inputs() -> None:
    x = torch.ones(2, 4, device="cuda")
    graph, out = captured(lambda: x * 2)
    for value in range(3):
        x.copy_(torch.full((2, 4), float(value), device="cuda"))
        graph.replay()
        out.clone()


def shared_pool() -> None:
    x = torch.ones(2, 4, device="cuda")
    first, middle = captured(lambda: x * 2)
    second, _ = captured(lambda: middle + 1, pool=first.pool())
    middle = torch.empty(0)
    first.replay()
    second.replay()


def captured_again() -> None:
    policy, x = model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    graph.replay()
    policy.weight = torch.nn.Parameter(torch.zeros(4, 4, device="cuda"))
    graph, _ = captured(lambda: policy(x))
    graph.replay()


def only_a_shape() -> None:
    like = torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: torch.zeros_like(like) + 1)
    like = torch.empty(0)
    graph.replay()


def held_by_a_view() -> None:
    base = torch.ones(4, 4, device="cuda")
    graph, _ = captured(lambda: base[1:] * 2)
    rest = base[2:]
    base = torch.empty(0)
    graph.replay()
    rest.add_(1)


def updated_buffer() -> None:
    norm, x = torch.nn.BatchNorm1d(4, device="cuda"), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: norm(x))
    for _ in range(2):
        graph.replay()


def in_place_cache() -> None:
    engine = Engine()
    for _ in range(3):
        engine.cache.zero_()
        engine.graph.replay()


def trained() -> None:
    with torch.enable_grad():
        net, x = model(), torch.ones(2, 4, device="cuda")
        call = torch.cuda.make_graphed_callables(net, (x,))
        del x
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            call(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()


@pytest.mark.parametrize(
    "program",
    [
        copied_weights, copied_inputs, shared_pool, captured_again, only_a_shape, held_by_a_view,
        updated_buffer, in_place_cache, trained,
    ],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_a_healthy_program_has_no_report(program: Callable[[], None]) -> None:
    report = audited(program)
    assert report.replays
    assert report.stale_tensors == ()


SCRIPT = """\
import torch
x = torch.ones(4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = x * 2
{change}
graph.replay()
print("done")
"""


@pytest.mark.parametrize(("change", "code"), [("x = torch.zeros(4, device='cuda')", 1), ("", 0)])
def test_the_command_reports_and_its_exit_code_says_so(
    tmp_path: Path, request: pytest.FixtureRequest, change: str, code: int
) -> None:
    device = request.node.callspec.params["on_device"]
    file, saved = tmp_path / "serve.py", tmp_path / "audit.json"
    file.write_text(SCRIPT.format(change=change))
    command = warm.command(warm.CLI, "audit", "--device", device, "--json", str(saved), str(file))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (code, "done\n"), done.stderr
    report = json.loads(saved.read_text())
    jsonschema.validate(report, schema_of("audit"))
    assert [each["name"] for each in report["stale_tensors"]] == ["x"] * code
    assert ("was freed after the capture" in " ".join(done.stderr.split())) is bool(code)


def test_a_rank_that_closed_its_streams_saves_its_own_report(tmp_path: Path) -> None:
    file = tmp_path / "serve.py"
    change = "x = torch.zeros(4, device='cuda')\nimport sys\nsys.stderr.close()"
    file.write_text(SCRIPT.format(change=change) + "sys.stdout.close()\n")
    command = warm.command(
        warm.CLI, "audit", "--device", "emulated", "--json", str(tmp_path / "audit.json"), str(file)
    )
    ranks = os.environ | {"RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=ranks)
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads((tmp_path / "audit.rank1.json").read_text())
    assert [each["name"] for each in report["stale_tensors"]] == ["x"]
