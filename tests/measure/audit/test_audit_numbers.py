"""Numbers that are frozen at capture are reported once the program changes them; others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphdoctor
from graphdoctor.values.audited import FrozenValue
from graphdoctor.values.locations import Location
from tests.measure.audit.healthy_graphs import batch, model
from tests.support.emulated import captured

pytestmark = pytest.mark.usefixtures("on_device")


def frozen(program: Callable[[], object]) -> tuple[FrozenValue, ...]:
    with graphdoctor.audit() as found:
        program()
    report = found.report()
    assert report.replays and not report.stale_tensors
    assert report.has_faults is bool(report.frozen_values)
    return report.frozen_values


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale, self.drop, self.calls = model(), 0.5, 0.25, 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keep = 1 - self.drop
        out = self.linear(x) * self.scale  # <- used
        return out / keep if self.calls > 1 else out


class Sampler:
    """Serves with a temperature and a window that requests may set."""

    def __init__(self) -> None:
        self.logits, self.temperature, self.window = batch(), 0.8, 1
        self.graph, self.out = captured(self._sample)

    def _sample(self) -> torch.Tensor:
        recent = self.logits[self.window :]
        return torch.softmax(recent / self.temperature, dim=-1)  # <- used

    def step(self) -> torch.Tensor:
        self.graph.replay()
        return self.out


class Training:
    """A whole step in a graph, and a schedule."""

    def __init__(self, optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
        self.net, self.x = model(), batch()
        self.optimizer = optimizer(self.net.parameters())
        self._step()
        self.graph, _ = captured(self._step)

    def _step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.net(self.x).square().sum().backward()
        self.optimizer.step()  # <- used

    def run(self, advance: Callable[[], object]) -> None:
        for _ in range(3):
            self.graph.replay()
            advance()


def module_in_a_hand_made_graph() -> None:
    net, x = Scaled(), batch()
    graph, _ = captured(lambda: net(x))
    graph.replay()
    net.scale = 0.75  # <- changed
    graph.replay()


def module_in_a_graphed_callable() -> None:
    net = Scaled()
    call: Any = torch.cuda.make_graphed_callables(net, (batch(),))
    call(batch()).sum().backward()
    net.scale = 0.75  # <- changed
    call(batch())


def engine_with_a_temperature() -> None:
    engine = Sampler()
    for temperature in (0.8, 0.5):
        engine.temperature = temperature
        engine.step()


def variable_of_the_loop() -> None:
    x, scale = batch(), 0.5
    graph, _ = captured(lambda: x * scale)  # <- used
    for _ in range(3):
        graph.replay()
        scale *= 0.5


def scheduled_rate_of_sgd() -> None:
    training = Training(lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9))
    schedule = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
    training.run(lambda: schedule.step())  # <- changed


def scheduled_rate_and_betas_of_adam() -> None:
    training = Training(lambda parameters: torch.optim.Adam(parameters, 0.1, capturable=True))
    rate = 0.2
    schedule = torch.optim.lr_scheduler.OneCycleLR(training.optimizer, rate, 9)  # <- changed
    training.run(schedule.step)


def scheduled_weight_decay() -> None:
    training = Training(lambda parameters: torch.optim.SGD(parameters, 0.1, weight_decay=0.01))

    def decay() -> None:
        training.optimizer.param_groups[0]["weight_decay"] *= 0.5

    training.run(decay)


def number_in_a_tensor_on_the_host() -> None:
    x, scale = batch(), torch.tensor(0.5)
    graph, _ = captured(lambda: x * scale)  # <- used
    graph.replay()
    scale.fill_(0.25)
    graph.replay()


FAULTS = {
    module_in_a_hand_made_graph: ("self.scale", "0.5", "0.75"),
    module_in_a_graphed_callable: ("self.scale", "0.5", "0.75"),
    engine_with_a_temperature: ("self.temperature", "0.8", "0.5"),
    variable_of_the_loop: ("scale", "0.5", "0.25"),
    scheduled_rate_of_sgd: ('SGD.param_groups[0]["lr"]', "0.1", "0.05"),
    scheduled_rate_and_betas_of_adam: (
        'Adam.param_groups[0]["betas"][0]',
        "0.9",
        "0.95",
    ),
    scheduled_weight_decay: ('SGD.param_groups[0]["weight_decay"]', "0.01", "0.005"),
    number_in_a_tensor_on_the_host: ("scale", "0.5", "0.25"),
}


@pytest.mark.parametrize("program", FAULTS, ids=lambda program: program.__name__)
def test_a_frozen_number_is_reported_once_with_its_lines(program: Callable[[], None]) -> None:
    name, before, now = FAULTS[program]
    found = {each.name: each for each in frozen(program)}
    assert len(found) == (2 if name.endswith('["betas"][0]') else 1)
    assert (found[name].captured, found[name].now) == (before, now)
    assert text_of(found[name].used_at).endswith("# <- used")
    lines = Path(__file__).read_text().splitlines()
    first = program.__code__.co_firstlineno
    changed = next((line for line in lines[first : first + 8] if "# <- changed" in line), "")
    if changed:
        assert text_of(found[name].changed_at) == changed


def text_of(place: Location | None) -> str:
    assert place is not None
    return Path(__file__).read_text().splitlines()[place.line - 1]


def count_that_reaches_no_operator() -> None:
    net, x = Scaled(), batch()
    graph, _ = captured(lambda: net(x))
    for _ in range(3):
        graph.replay()
        net.calls += 1


def rate_in_a_tensor() -> None:
    rate = torch.tensor(0.1, device="cuda")
    training = Training(lambda parameters: torch.optim.Adam(parameters, rate, capturable=True))
    schedule = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
    training.run(schedule.step)


def optimizer_outside_of_the_graph() -> None:
    net, x = model(), batch()
    optimizer = torch.optim.AdamW(net.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def forward_and_backward() -> None:
        optimizer.zero_grad(set_to_none=False)
        net(x).square().sum().backward()

    forward_and_backward()
    graph, _ = captured(forward_and_backward)
    for _ in range(3):
        graph.replay()
        optimizer.step()
        schedule.step()


def initial_rate_that_no_step_reads() -> None:
    training = Training(lambda parameters: torch.optim.SGD(parameters, 0.1))
    training.optimizer.param_groups[0]["initial_lr"] = 0.1
    training.graph, _ = captured(training._step)
    training.run(lambda: training.optimizer.param_groups[0].update(initial_lr=0.5))


def group_without_gradients() -> None:
    frozen_layer = model()
    training = Training(
        lambda parameters: torch.optim.SGD([{"params": parameters}, {"params": [*frozen_layer.parameters()]}], 0.1)
    )  # fmt: skip
    training.run(lambda: training.optimizer.param_groups[1].update(lr=0.5))


def graph_for_each_temperature() -> None:
    engine, graphs = Sampler(), {}
    for engine.temperature in (0.5, 0.8, 1.1):
        graphs[engine.temperature] = captured(engine._sample)[0]
    for temperature in (1.1, 0.5, 0.8):
        graphs[temperature].replay()


def number_that_changes_back() -> None:
    net, x = Scaled(), batch()
    graph, _ = captured(lambda: net(x))
    for _ in range(3):
        net.scale = 2.0
        net(x)
        net.scale = 0.5
        graph.replay()


def captured_again_after_the_change() -> None:
    net, x = Scaled(), batch()
    for scale in (0.5, 0.75):
        net.scale = scale
        graph, _ = captured(lambda: net(x))
        graph.replay()
        graph.replay()


def number_of_a_loop() -> None:
    net, x = Scaled(), batch()

    def layers() -> torch.Tensor:
        out = x
        for index in range(3):
            net.scale = 0.5 + index
            out = net(out)
        return out

    graph, _ = captured(layers)
    for net.scale in (0.1, 0.2):
        graph.replay()


def length_with_another_use_later() -> None:
    n = 1
    x = batch()
    graph, _ = captured(lambda: x[n:] * 2)
    n = 3
    for _ in range(n):
        graph.replay()


@pytest.mark.parametrize(
    "program",
    [
        count_that_reaches_no_operator, rate_in_a_tensor, optimizer_outside_of_the_graph,
        initial_rate_that_no_step_reads, group_without_gradients, graph_for_each_temperature,
        number_that_changes_back, captured_again_after_the_change, number_of_a_loop,
        length_with_another_use_later,
    ],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_a_number_that_no_replay_needs_is_not_reported(program: Callable[[], None]) -> None:
    assert frozen(program) == ()


def test_schedulers_of_torch_are_its_own_after_an_audit() -> None:
    before = dict(vars(torch.optim.lr_scheduler.LRScheduler))
    frozen(scheduled_rate_of_sgd)
    assert before == dict(vars(torch.optim.lr_scheduler.LRScheduler))
