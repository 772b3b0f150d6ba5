"""Planted faults, of each kind in each program: the line is right, and the script is small and shows the fault."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch.nn import functional

import graphdoctor
from graphdoctor.device.observe.interpreter import no_collection
from graphdoctor.measure.audit.blame import shows_difference
from tests.support import warm
from tests.support.emulated import captured, one_thread  # noqa: F401

pytestmark = pytest.mark.usefixtures("on_device")


class Program:
    """A step with an input, a weight, a number and a scalar on the host, each used in a line of its own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.weight = torch.randn(8, 8, device="cuda")
        self.x = torch.randn(4, 8, device="cuda")
        self.scale, self.offset = 0.5, torch.tensor(0.25)

    def step(self) -> torch.Tensor:
        hidden = torch.tanh(self.x)  # <- input
        hidden = functional.layer_norm(self.body(hidden + 1), (8,))
        return (hidden * self.scale + 1).div(self.offset)  # <- number, scalar

    def body(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(hidden, self.weight).relu()  # <- weight


class Attention(Program):
    def body(self, hidden: torch.Tensor) -> torch.Tensor:
        query = hidden @ self.weight  # <- weight
        scores = (query @ hidden.t() / 8**0.5).softmax(-1)
        return scores @ hidden


class Decoder(Program):
    """Writes into a cache that lives on, and reads all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.cache, self.position = (
            torch.zeros(16, 8, device="cuda"),
            torch.tensor([3], device="cuda"),
        )

    def body(self, hidden: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, self.position, hidden[:1])
        return (hidden @ self.cache.t()).softmax(-1) @ self.cache @ self.weight  # <- weight


class Convolution(Program):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(8, 1, 3, device="cuda")

    def body(self, hidden: torch.Tensor) -> torch.Tensor:
        maps = torch.conv1d(hidden[:, None], self.weight, padding=1)  # <- weight
        return maps.relu().mean(1)


class Mixture(Program):
    """Many operators before the wrong one, lists of tensors, and indices."""

    def body(self, hidden: torch.Tensor) -> torch.Tensor:
        for _ in range(30):  # after which a difference of the input is still there
            hidden = hidden + hidden.flip(0).sin() * 0.125
        order = hidden.sum(0).argsort()
        parts = torch._foreach_add([hidden, hidden[:, order]], [hidden, hidden])
        return torch.cat(parts) @ self.weight  # <- weight


def change_input(program: Program) -> None:
    program.x = torch.randn(4, 8, device="cuda")


def change_weight(program: Program) -> None:
    program.weight = torch.randn_like(program.weight)


def change_number(program: Program) -> None:
    program.scale = 0.75


def change_scalar(program: Program) -> None:
    program.offset.fill_(2.0)


PROGRAMS = (Program, Attention, Decoder, Convolution, Mixture)
CHANGES = (change_input, change_weight, change_number, change_scalar)


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3))).cuda()
        self.x = torch.randn(4, 8, device="cuda")
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=0.125, momentum=0.75, weight_decay=0.0625
        )
        with torch.enable_grad():
            self.step()

    @torch.enable_grad()
    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        self.net(self.x).square().sum().backward()
        self.optimizer.step()  # <- option


def planted(kind: Callable[[], Any], change: Callable[[Any], None]) -> Callable[[], None]:
    def program() -> None:
        planted = kind()
        with torch.no_grad():
            planted.step()  # libraries make their handles before a capture
            graph, _ = captured(lambda: planted.step())
            graph.replay()
            change(planted)
            graph.replay()

    return program


def option(name: str) -> Callable[[Training], None]:
    def change(training: Training) -> None:
        training.optimizer.param_groups[0][name] *= 0.5

    return change


FAULTS = [
    *((f"{kind.__name__}-{change.__name__}", planted(kind, change), change.__name__[7:])
      for kind, change in product(PROGRAMS, CHANGES)),
    *((name, planted(Training, option(name)), "option") for name in ("lr", "momentum", "weight_decay")),
]  # fmt: skip


@pytest.mark.parametrize(("program", "mark"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_planted_fault_has_its_line_and_a_small_script(
    program: Callable[[], None], mark: str
) -> None:
    with graphdoctor.audit(verify=1, blame=True) as audit:
        program()
    begun = time.perf_counter()
    script = audit.blame()
    assert time.perf_counter() - begun < 60
    wrong = audit.report().wrong_replays[0]
    assert wrong.used_at is not None
    line = Path(__file__).read_text().splitlines()[wrong.used_at.line - 1]
    assert mark in line.partition("# <- ")[2], line
    assert script is not None
    assert f"{wrong.used_at.file}:{wrong.used_at.line}" in script
    assert shows_difference(script)
    assert script.count("torch.ops.") <= 10, script


def test_a_script_leaves_nothing_behind_that_a_later_capture_could_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA ends a capture in which an earlier graph is destroyed, and torch stays on a failed capture's stream."""
    with graphdoctor.audit(verify=1, blame=True) as audit:
        planted(Program, change_number)()
    script = audit.blame()
    assert script is not None
    stream, made = torch.cuda.current_stream(), []

    class Graph(torch.cuda.CUDAGraph):
        def __init__(self) -> None:
            super().__init__()
            made.append(ref(self))

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    waits = script.replace("    return ", "    torch.cuda.synchronize()\n    return ")
    with no_collection():
        assert shows_difference(script) and not shows_difference(waits)
        assert [each() for each in made] == [None, None]
    assert torch.cuda.current_stream() == stream


def test_operators_that_a_difference_does_not_need_are_left_out() -> None:
    with graphdoctor.audit(verify=1, blame=True) as audit:
        planted(Mixture, change_weight)()
    tried: list[str] = []

    def shows(script: str) -> bool:
        tried.append(script)
        return "aten.sin." in script and "aten._foreach_add." in script and shows_difference(script)

    script = audit.blame(shows)
    assert script is not None and shows(script)
    used = [line.partition("torch.ops.")[2] for line in script.splitlines() if "torch.ops." in line]
    names = [name.partition("(")[0] for name in used]
    assert names == ["aten.sin.default", "aten._foreach_add.List", "aten.mm.default"]
    assert len(tried) < 200


SCRIPT = """\
import torch
x, scale = torch.ones(4, device="cuda"), 0.5
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = (x + 1) * scale
scale = 0.75
graph.replay()
"""


def test_the_command_writes_a_script_that_runs_alone(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    device = request.node.callspec.params["on_device"]
    file, blamed = tmp_path / "serve.py", tmp_path / "blamed.py"
    file.write_text(SCRIPT)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = warm.command(warm.CLI, "audit", "--device", device, *options)
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    done = run("--verify", "every=1", "--blame", str(blamed), str(file))
    assert done.returncode == 1 and "blame: written to" in " ".join(done.stderr.split())
    assert f"aten.mul.Tensor ({file}:5)" in blamed.read_text()
    assert run(str(blamed)).stdout == "The replay differs from eager.\n"
    assert run("--blame", str(blamed), str(file)).returncode == 2
