"""Replays that use memory which was freed or rebound are reported by line; healthy programs are not."""

from __future__ import annotations

import gc
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import graphdoctor
from graphdoctor.values.audited import AuditReport
from tests.captured.test_step import hidden_state, results_in_attributes
from tests.measure.audit.healthy_graphs import HEALTHY, Engine, batch, model
from tests.support import warm
from tests.support.emulated import captured
from tests.support.schemas import schema_of

pytestmark = pytest.mark.usefixtures("on_device")


def audited(program: Callable[[], object]) -> AuditReport:
    with torch.no_grad(), graphdoctor.audit() as found:
        program()
    return found.report()


def weight_sync() -> None:
    policy, x = model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    graph.replay()
    policy.weight = torch.nn.Parameter(torch.zeros(4, 4, device="cuda"))  # <- changed
    graph.replay()  # <- stale


def assigned_checkpoint() -> None:
    policy, x = model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    state = {k: v.clone() for k, v in policy.state_dict().items()}
    policy.load_state_dict(state, assign=True)  # <- changed
    graph.replay()  # <- stale


def replaced_data() -> None:
    policy, x = model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    policy.weight.data = torch.zeros(4, 4, device="cuda")  # <- changed
    graph.replay()  # <- stale


def swapped_parameters() -> None:
    """As in a review of pytorch/rl#4269: weights are applied out of place, after the capture."""
    policy, x = model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    graph.replay()
    for name, parameter in model().named_parameters():
        policy._parameters[name] = parameter
    graph.replay()  # <- stale


def metadata_of_each_step() -> None:
    """As in sgl-project/sglang#27664: each step makes its metadata again, and the graph reads the old one."""
    engine = Engine()
    for value in range(3):
        engine.token = torch.full((4,), float(value), device="cuda")
        engine.graph.replay()  # <- stale


def reallocated_cache() -> None:
    engine = Engine()
    engine.graph.replay()
    engine.cache = torch.zeros(16, 4, device="cuda")
    engine.graph.replay()  # <- stale


FAULTS = {
    weight_sync: ("rebound", "policy.weight"),
    assigned_checkpoint: ("rebound", "policy.weight"),
    replaced_data: ("rebound", "policy.weight"),
    swapped_parameters: ("rebound", "policy.weight"),
    metadata_of_each_step: ("freed", "self.token"),
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
    used_in = Path(stale.used_at.file).read_text().splitlines()
    assert "captured(lambda" in used_in[stale.used_at.line - 1]
    if stale.reason == "rebound" and program is not swapped_parameters:
        assert stale.changed_at is not None
        assert lines[stale.changed_at.line - 1].endswith("# <- changed")


def cache_of_a_method() -> None:
    """Another function gets a method of the object that has the cache."""

    class Decoder:
        def __init__(self) -> None:
            self.cache = torch.ones(4, device="cuda")
            self.graph, self.result = captured(self.step)

        def step(self) -> torch.Tensor:
            return self.cache * 2

    decoder = Decoder()
    decoder.cache = torch.zeros(4, device="cuda")
    decoder.graph.replay()


def cache_of_an_object() -> None:
    """An object that has an earlier variable than its cache leads to the cache."""
    layers = [torch.ones(4, device="cuda")]

    class Attention:
        def __init__(self) -> None:
            self.compute = lambda: layers[0] * 2

    attention = Attention()
    graph, _ = captured(lambda: attention.compute())
    layers[0] = torch.zeros(4, device="cuda")
    graph.replay()


@pytest.mark.parametrize(
    ("program", "name"), [(cache_of_a_method, "self.cache"), (cache_of_an_object, "layers[0]")]
)
def test_a_tensor_is_named_by_the_variable_that_has_it_whatever_else_leads_there(
    program: Callable[[], None], name: str
) -> None:
    (stale,) = audited(program).stale_tensors
    assert stale.name == name


def test_a_model_that_is_converted_after_make_graphed_callables() -> None:
    with graphdoctor.audit() as audit:
        net = model()
        x = torch.ones(2, 4, device="cuda")
        call = torch.cuda.make_graphed_callables(net, (x,))
        call(x).sum().backward()
        assert audit.report().stale_tensors == ()
        net.to(torch.float64)  # <- changed
        call(x)  # <- stale
    found = audit.report().stale_tensors
    assert {each.name for each in found} >= {"net.weight", "net.bias"}
    lines = Path(__file__).read_text().splitlines()
    places = [each.replayed_at for each in found]
    assert all(place and lines[place.line - 1].endswith("# <- stale") for place in places)
    changes = [each.changed_at for each in found if each.name]
    assert all(place and lines[place.line - 1].endswith("# <- changed") for place in changes)


@pytest.mark.parametrize("is_freed", [True, False], ids=["freed", "replaced"])
def test_memory_that_goes_after_many_replays_is_reported_in_the_next(*, is_freed: bool) -> None:
    def program() -> None:
        policy, x = model(), batch()
        graph, _ = captured(lambda: policy(x))
        for _ in range(12):
            graph.replay()
        if is_freed:
            x = batch()
        else:
            policy.weight.data = torch.zeros(4, 4, device="cuda")
        graph.replay()

    (stale,) = audited(program).stale_tensors
    assert (stale.name, stale.replay) == ("x" if is_freed else "policy.weight", 13)


SERVER = """
class Server:
    def __init__(self):
        self.x = batch()
        self.graph, _ = captured(self.forward)

    def forward(self):
        return net(self.x)

server = Server()
net.weight.data = net.weight.data * 2
server.graph.replay()
"""


def test_a_module_of_the_file_is_named_by_its_variable() -> None:
    namespace = {"captured": captured, "batch": batch, "net": model()}
    (stale,) = audited(lambda: exec(SERVER, namespace)).stale_tensors
    assert stale.name == "net.weight"


def buffer_that_is_assigned(norm: torch.nn.BatchNorm1d) -> None:
    norm.running_mean = torch.ones(4, device="cuda")  # <- changed


def input_whose_data_is_replaced(norm: torch.nn.BatchNorm1d) -> None:
    assert norm.running_mean is not None
    norm.running_mean.data = torch.ones(4, device="cuda")  # <- changed


def buffers_that_are_converted(norm: torch.nn.BatchNorm1d) -> None:
    norm.double()  # <- changed


@pytest.mark.parametrize(
    "change",
    [buffer_that_is_assigned, input_whose_data_is_replaced, buffers_that_are_converted],
    ids=lambda change: change.__name__,
)
def test_the_line_that_replaced_a_buffer_is_reported(
    change: Callable[[torch.nn.BatchNorm1d], None],
) -> None:
    def program() -> None:
        norm, x = torch.nn.BatchNorm1d(4, device="cuda").eval(), torch.ones(2, 4, device="cuda")
        graph, _ = captured(lambda: norm(x))
        graph.replay()
        change(norm)
        graph.replay()

    found = audited(program).stale_tensors
    place = next(each.changed_at for each in found if each.name == "norm.running_mean")
    assert place is not None and place.function == change.__name__


def test_a_line_that_replaces_memory_it_does_not_capture_is_not_reported() -> None:
    def program() -> None:
        policy, other, x = model(), model(), torch.ones(2, 4, device="cuda")
        graph, _ = captured(lambda: policy(x))
        other.weight = torch.nn.Parameter(torch.zeros(4, 4, device="cuda"))
        policy._parameters["weight"] = other.weight
        graph.replay()

    (stale,) = (each for each in audited(program).stale_tensors if each.name == "policy.weight")
    assert stale.changed_at is None


def test_methods_of_torch_are_its_own_after_an_audit() -> None:
    before = torch.nn.Module.__setattr__, torch.nn.Module._apply, torch.Tensor.data
    with graphdoctor.audit():
        assert torch.Tensor.data is not before[2]
    assert before == (torch.nn.Module.__setattr__, torch.nn.Module._apply, torch.Tensor.data)


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_a_healthy_program_has_no_report(program: Callable[[], None]) -> None:
    report = audited(program)
    assert report.replays
    assert not report.has_faults, report


def train_and_validate(change: Callable[[torch.nn.Module], object]) -> int:
    """Epochs of a network that is captured for validation; how many of the 5 calls ran eagerly."""
    net = torch.nn.Sequential(model(), torch.nn.LeakyReLU(0.5), torch.nn.Dropout(0.5), model())
    optimizer, x = torch.optim.SGD(net.parameters(), 0.01), batch()
    fast = graphdoctor.capture(net.eval(), x, mode="inference")
    for epoch in range(5):
        net.train()
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        net.eval()
        if epoch == 3:
            change(net)
        with torch.no_grad():
            assert torch.equal(fast(x), net(x))
    assert isinstance(fast.fallbacks, Counter)
    return fast.fallbacks.total()


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.load_state_dict(
            {name: value * 2 for name, value in net.state_dict().items()}, assign=True
        ),
        lambda net: setattr(net[0].weight, "data", net[0].weight.data * 2),
        lambda net: setattr(net[1], "negative_slope", 0.25),
    ],
    ids=["assigned_checkpoint", "replaced_data", "number"],
)
@pytest.mark.parametrize("verify", [0, 1])
def test_calls_that_captured_models_run_eagerly_are_not_reported(
    change: Callable[[torch.nn.Module], object], verify: int
) -> None:
    with graphdoctor.audit(verify=verify) as audit:
        assert train_and_validate(change) == 2
    report = audit.report()
    assert not report.has_faults, report
    assert report.replays > 3  # with those of the proof


@pytest.mark.parametrize("program", [results_in_attributes, hidden_state])
def test_replays_that_prove_a_captured_step_are_not_reported(
    program: Callable[..., object],
) -> None:
    steps: list[Any] = []
    with graphdoctor.audit(verify=1) as audit:
        program(lambda step: steps.append(graphdoctor.capture(step)) or steps[0])
    report = audit.report()
    assert not report.has_faults, report
    assert report.verified is not None
    assert report.verified.replays == steps[0].replayed > 0


def test_no_garbage_is_collected_in_a_capture() -> None:
    """CUDA ends a capture in which an earlier graph is destroyed."""
    collects: list[bool] = []
    x = batch()

    def program() -> None:
        captured(lambda: (x + 1, collects.append(gc.isenabled())))
        with pytest.raises(ZeroDivisionError):
            captured(lambda: (x + 1, 1 // 0))
        collects.append(gc.isenabled())

    audited(program)
    assert collects == [False, True]


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


def test_the_command_reports_a_list_of_outputs(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    device = request.node.callspec.params["on_device"]
    file, saved = tmp_path / "train.py", tmp_path / "audit.json"
    change = "losses = []\nfor _ in range(3):\n    graph.replay()\n    losses.append(out)"
    file.write_text(SCRIPT.format(change=change))
    command = warm.command(warm.CLI, "audit", "--device", device, "--json", str(saved), str(file))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, "done\n"), done.stderr
    report = json.loads(saved.read_text())
    jsonschema.validate(report, schema_of("audit"))
    (found,) = report["overwritten_outputs"]
    assert (found["name"], found["kept_at"]["line"]) == ("losses", 9)
    page = " ".join(done.stderr.split())
    assert "`losses` holds an output (float32[4]) that a later replay overwrote" in page


def test_a_rank_that_closed_its_streams_saves_its_own_report(tmp_path: Path) -> None:
    file = tmp_path / "serve.py"
    change = "x = torch.zeros(4, device='cuda')\nimport sys\nsys.stderr.close()"
    file.write_text(SCRIPT.format(change=change) + "sys.stdout.close()\n")
    command = warm.command(
        warm.CLI, "audit", "--device", "emulated", "--json", str(tmp_path / "audit.json"),
        f"--report=sarif={tmp_path / 'audit.sarif'}", str(file),
    )  # fmt: skip
    ranks = os.environ | {"RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=ranks)
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads((tmp_path / "audit.rank1.json").read_text())
    assert [each["name"] for each in report["stale_tensors"]] == ["x"]
    (run,) = json.loads((tmp_path / "audit.rank1.sarif").read_text())["runs"]
    assert [each["ruleId"] for each in run["results"]] == ["stale-tensor-freed"]
