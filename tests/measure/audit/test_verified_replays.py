"""`audit(verify=...)`: replays that differ from eager are reported with their first wrong operator."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import torch

import graphdoctor
from graphdoctor.measure.audit import verified_replays
from graphdoctor.values.audited import AuditReport
from tests.measure.audit.healthy_graphs import HEALTHY, Cache, model
from tests.support import warm
from tests.support.emulated import captured, one_thread  # noqa: F401
from tests.support.schemas import schema_of

pytestmark = pytest.mark.usefixtures("on_device")


def verified(program: Callable[[], object], **options: Any) -> AuditReport:
    with graphdoctor.audit(**(options or {"verify": 1})) as found:
        program()
    return found.report()


def rebound_weight() -> None:
    net, x = model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: net(x).relu())  # <- wrong
    graph.replay()
    net.weight = torch.nn.Parameter(torch.full((4, 4), 2.0, device="cuda"))
    graph.replay()


class Decoder:
    """A step that fills a cache, in the manner of an engine."""

    def __init__(self) -> None:
        self.cache = torch.zeros(8, 4, device="cuda")
        self.token = torch.ones(1, 4, device="cuda")
        self.scale = 0.5
        self.graph, self.out = captured(lambda: self.step())

    def step(self) -> torch.Tensor:
        self.cache[3:4] = self.token  # <- cache
        return (self.cache * self.scale).sum()  # <- scale


def reallocated_cache() -> None:
    decoder = Decoder()
    old = decoder.cache  # its memory is not freed, so that no stale tensor is seen
    decoder.graph.replay()
    decoder.cache = torch.ones(8, 4, device="cuda")
    decoder.graph.replay()
    assert old.sum() == 4


def frozen_attribute() -> None:
    decoder = Decoder()
    decoder.graph.replay()
    decoder.scale = 0.25
    decoder.graph.replay()


def frozen_variable() -> None:
    factor, x = 0.5, torch.ones(4, device="cuda")
    graph, _ = captured(lambda: (x + 1) * factor)  # <- wrong
    graph.replay()
    factor = 0.1
    graph.replay()


def frozen_tensor_on_the_host() -> None:
    factor, x = torch.tensor(0.5), torch.ones(4, device="cuda")
    graph, _ = captured(lambda: (x + 1) * factor)  # <- wrong
    graph.replay()
    factor.fill_(0.125)
    graph.replay()


def training(kind: type[torch.optim.Optimizer], **options: Any) -> tuple[Any, Any, object]:
    """The optimizer, its captured step, and the memory that the graph reads."""
    net, x = model(), torch.ones(2, 4, device="cuda")
    optimizer: Any = kind(net.parameters(), **options)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        net(x).square().sum().backward()
        optimizer.step()  # <- wrong

    step()
    graph, _ = captured(step)
    return optimizer, graph, (net, x)


def frozen_learning_rate() -> None:
    optimizer, graph, _memory = training(torch.optim.SGD, lr=0.1, momentum=0.9)
    graph.replay()
    optimizer.param_groups[0]["lr"] = 0.01
    graph.replay()


def frozen_weight_decay() -> None:
    """AdamW multiplies its weights with 1 - lr * weight_decay."""
    optimizer, graph, _memory = training(
        torch.optim.AdamW, lr=0.1, weight_decay=0.3, capturable=True
    )
    graph.replay()
    optimizer.param_groups[0]["weight_decay"] = 0.2
    graph.replay()


def assigned_checkpoint() -> None:
    net, x = model(), torch.ones(2, 4, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # keeps the parameters it was made with
    graph, _ = captured(lambda: net(x))  # <- wrong
    graph.replay()
    state = {name: value * 2 for name, value in net.state_dict().items() if name == "weight"}
    net.load_state_dict(state, assign=True, strict=False)
    graph.replay()
    assert optimizer.param_groups[0]["params"][0] is not net.weight


def output_in_other_memory() -> None:
    decoder = Decoder()
    decoder.graph.replay()
    old, decoder.cache = decoder.cache, decoder.cache.clone()
    old[3:4], decoder.cache[3:4] = 5.0, 5.0
    decoder.graph.replay()


def replaced_cache_object() -> None:
    """A new cache for each request, as with StaticCache of transformers, whose graph reads the first one."""

    class Engine:
        def __init__(self) -> None:
            self.cache = Cache()
            self.graph, self.out = captured(lambda: self.cache.keys.exp())  # <- wrong

    engine = Engine()
    engine.graph.replay()
    engine.cache = Cache(1.0)
    engine.graph.replay()


def freed_input() -> None:
    namespace: dict[str, Any] = {"x": torch.ones(4, device="cuda"), "captured": captured}
    exec("graph, out = captured(lambda: x.exp())", namespace)
    namespace["graph"].replay()
    namespace["x"] = torch.zeros(4, device="cuda")
    exec("graph.replay()", namespace)


FAULTS: dict[Callable[[], None], tuple[str, str, str, str]] = {
    rebound_weight: ("aten.addmm.default", "# <- wrong", "net.weight", "other memory"),
    assigned_checkpoint: ("aten.addmm.default", "# <- wrong", "net.weight", "other memory"),
    reallocated_cache: ("aten.mul.Tensor", "# <- scale", "self.cache", "other memory"),
    output_in_other_memory: ("aten.copy_.default", "# <- cache", "self.cache", "other memory"),
    frozen_attribute: ("aten.mul.Tensor", "# <- scale", "self.scale", "0.25"),
    frozen_variable: ("aten.mul.Tensor", "# <- wrong", "factor", "0.1"),
    frozen_tensor_on_the_host: ("aten.mul.Tensor", "# <- wrong", "factor", "0.125"),
    frozen_learning_rate: ("aten._foreach_add_.List", "# <- wrong", 'SGD.param_groups[0]["lr"]', "-0.01"),
    replaced_cache_object: ("aten.exp.default", "# <- wrong", "self.cache.keys", "other memory"),
    frozen_weight_decay: (
        "aten._foreach_mul_.Scalar", "# <- wrong",
        'AdamW.param_groups[0]["lr"] * AdamW.param_groups[0]["weight_decay"]', "0.98",
    ),
    freed_input: ("aten.exp.default", "", "x", "other memory"),
}  # fmt: skip


@pytest.mark.parametrize("program", FAULTS, ids=lambda program: program.__name__)
def test_the_first_wrong_operator_is_found_with_its_line_and_what_changed(
    program: Callable[[], None],
) -> None:
    operator, mark, name, now = FAULTS[program]
    (wrong,) = verified(program).wrong_replays
    assert (wrong.operator, wrong.replay, wrong.frozen, wrong.repeats) == (operator, 2, True, True)
    assert wrong.max_abs > 0
    assert [(each.name, each.now) for each in wrong.inputs if each.now] == [(name, now)]
    if mark:
        assert wrong.used_at is not None
        assert Path(__file__).read_text().splitlines()[wrong.used_at.line - 1].endswith(mark)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", torch.ones(4, device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = torch.tanh(self.hidden + x)  # <- wrong
        return self.hidden * 2


def test_a_state_that_the_captured_step_rebinds_differs_from_the_first_replay_on() -> None:
    def program() -> None:
        cell, x = Recurrent(), torch.ones(4, device="cuda")
        graph, _ = captured(lambda: cell(x))
        cell.hidden.zero_()  # on a GPU, a capture leaves whatever was in the new memory
        for _ in range(3):
            graph.replay()

    (wrong,) = verified(program).wrong_replays
    # Eager repeats its result although the replay has written what eager read.
    assert (wrong.operator, wrong.replay, wrong.repeats) == ("aten.add.Tensor", 1, True)
    assert [each.name for each in wrong.inputs if each.now] == ["cell.hidden"]
    assert wrong.used_at is not None
    line = Path(__file__).read_text().splitlines()[wrong.used_at.line - 1]
    assert line.endswith("# <- wrong")


def random_training() -> None:
    net = torch.nn.Sequential(model(), torch.nn.Dropout(0.5), model())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, capturable=True)
    x = torch.ones(2, 4, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        net(x).square().sum().backward()
        optimizer.step()

    step()
    graph, _ = captured(step)
    for _ in range(3):
        x.copy_(torch.rand(2, 4, device="cuda"))
        graph.replay()


def in_place_only() -> None:
    total = torch.zeros(4, device="cuda")
    graph, _ = captured(lambda: torch._foreach_add_([total], 1.0))
    graph.replay()


def learning_rate_as_a_tensor() -> None:
    optimizer, graph, _memory = training(
        torch.optim.Adam, lr=torch.tensor(0.1, device="cuda"), capturable=True
    )
    graph.replay()
    optimizer.param_groups[0]["lr"].fill_(0.01)
    graph.replay()


@pytest.mark.parametrize(
    "program",
    [*HEALTHY, random_training, in_place_only, learning_rate_as_a_tensor],
    ids=lambda program: program.__name__,
)
def test_a_healthy_program_is_verified_and_computes_what_it_does_alone(
    program: Callable[[], None],
) -> None:
    report = verified(program)
    assert report.wrong_replays == ()
    assert report.verified is not None
    assert report.verified.replays > 0 or report.verified.operators == 0
    assert report.verified.failed == report.verified.unexplained == 0


def test_verifying_and_running_eagerly_leave_what_replays_leave() -> None:
    left: list[list[torch.Tensor]] = []

    def program() -> None:
        torch.manual_seed(1)
        net = torch.nn.Sequential(model(), torch.nn.Dropout(0.5), model())
        x, total = torch.ones(2, 4, device="cuda"), torch.zeros(2, 4, device="cuda")

        def step() -> torch.Tensor:
            out: torch.Tensor = net(x)
            total.add_(out)
            return out

        with torch.no_grad():
            graph, out = captured(step)
            for _ in range(3):
                graph.replay()
        left.append([out.clone(), total, torch.rand(2, device="cuda")])

    program()
    compared = verified(program).verified
    replaced = verified(program, debug_eager=True).verified
    assert compared is not None and replaced is not None
    assert (compared.replays, replaced.replays) == (3, 3)
    assert (compared.random, replaced.every) == (1, 0)
    for other in left[1:]:
        for one, two in zip(left[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_running_eagerly_cures_a_fault_of_the_graph() -> None:
    values: list[float] = []

    def program() -> None:
        decoder = Decoder()
        decoder.graph.replay()
        decoder.scale = 0.25
        decoder.graph.replay()
        values.append(decoder.out.item())

    program()
    verified(program, debug_eager=True)
    assert values == [2.0, 1.0]


def test_only_the_first_and_each_nth_replay_are_compared() -> None:
    def program() -> None:
        graph, _ = captured(lambda: torch.ones(4, device="cuda") * 2)
        for _ in range(9):
            graph.replay()

    report = verified(program, verify=4).verified
    assert report is not None and (report.every, report.replays) == (4, 3)


def test_the_spacing_follows_what_comparing_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now_s)
    monkeypatch.setattr(verified_replays, "time", clock)

    def program() -> None:
        nonlocal now_s
        x = torch.ones(4, device="cuda")
        with torch.no_grad():
            graph, _ = captured(lambda: x.exp())
            for _ in range(2000):
                graph.replay()
                now_s += 0.001

    def judge(verifier: Any, *args: Any) -> None:
        nonlocal now_s
        judged(verifier, *args)
        now_s += 0.005

    judged = verified_replays.ReplayVerifier._judge
    monkeypatch.setattr(verified_replays.ReplayVerifier, "_judge", judge)
    report = verified(program, verify="auto").verified
    assert report is not None and report.every == "auto"
    assert 2.0 / 0.2 < report.replays <= 1 + 0.03 * now_s / 0.005


def test_an_operator_of_a_library_is_counted_and_what_depends_on_it_too() -> None:
    with torch.library._scoped_library("graphdoctor_verified", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: torch.add(x, x), "CompositeExplicitAutograd")

        def program() -> None:
            x = torch.ones(4, device="cuda")
            with torch.no_grad():
                graph, _ = captured(lambda: torch.ops.graphdoctor_verified.twice(x + 1) * 3)
                graph.replay()

        report = verified(program).verified
    assert report is not None and (report.replays, report.operators, report.unseen) == (1, 1, 2)


SCRIPT = """\
import torch
x, scale = torch.ones(4, device="cuda"), 0.5
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = x * scale
scale = 0.75
graph.replay()
print(out.tolist())
"""


def test_the_command_names_the_operator_or_runs_it_eagerly(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    device = request.node.callspec.params["on_device"]
    file, saved = tmp_path / "serve.py", tmp_path / "audit.json"
    file.write_text(SCRIPT)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = warm.command(
            warm.CLI, "audit", "--device", device, *options, "--json", str(saved), str(file)
        )
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    done = run("--verify", "every=10")
    assert (done.returncode, done.stdout) == (1, f"{[0.5] * 4}\n"), done.stderr
    report = json.loads(saved.read_text())
    jsonschema.validate(report, schema_of("audit"))
    assert report["wrong_replays"][0]["used_at"]["line"] == 5
    page = " ".join(done.stderr.split())
    assert "The replay of aten.mul.Tensor differs from eager (by up to 0.25)" in page
    assert "`scale` (0.5 at capture) is 0.75 now" in page
    done = run("--verify", "auto")
    assert (done.returncode, done.stdout) == (1, f"{[0.5] * 4}\n"), done.stderr
    done = run("--debug-eager")
    assert (done.returncode, done.stdout) == (1, f"{[0.75] * 4}\n"), done.stderr  # frozen-value
    assert "1 replay replaced by eager runs" in " ".join(done.stderr.split())
    done = run("--verify", "100")
    assert done.returncode == 2 and "expected every=100 or auto" in done.stderr
