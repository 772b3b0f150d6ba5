"""The promises of docs/contract.md, a test for each row: the verdict, and the line that a finding names."""

from __future__ import annotations

import linecache
import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.values.finding import Finding
from graphdoctor.values.report import Report

Forward = Callable[["Counting", torch.Tensor], torch.Tensor]


class Counting(nn.Module):
    """A model that counts its calls, as many do."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls, self.epochs, self.is_warm = 0, 0, False
        self.losses = deque[float](maxlen=20)
        self._run = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self._run(self, x)


def report_of(forward: Forward) -> Report:
    return graphdoctor.analyze(
        lambda: (Counting(forward).cuda(), (torch.randn(4, 8, device="cuda"),)),
        device="emulated",
        strategies=(),
    )


def line_of(finding: Finding) -> str:
    assert finding.location is not None
    return linecache.getline(finding.location.file, finding.location.line).strip()


def period(self: Counting, x: torch.Tensor) -> torch.Tensor:
    if self.calls % 16 == 0:  # GD217
        x = x * 2
    return self.linear(x)


def warmup(self: Counting, x: torch.Tensor) -> torch.Tensor:
    scale = 1.0
    if self.calls <= 500:  # GD217
        scale = 0.1
    return self.linear(x) * scale


def flag(self: Counting, x: torch.Tensor) -> torch.Tensor:
    self.is_warm = self.calls >= 12
    if self.is_warm:  # GD217
        return self.linear(x)
    return self.linear(x.relu())


def schedule_table(self: Counting, x: torch.Tensor) -> torch.Tensor:
    stage = sum(self.calls >= start for start in (100, 1000, 5000))
    for _ in range(stage):  # GD217
        x = x.tanh()
    return self.linear(x)


def full_window(self: Counting, x: torch.Tensor) -> torch.Tensor:
    self.losses.append(0.5)
    if len(self.losses) == 20:  # GD217
        x = x - 1
    return self.linear(x)


def epoch(self: Counting, x: torch.Tensor) -> torch.Tensor:
    if self.calls % 100 == 0:
        self.epochs = self.epochs + 1
    if self.epochs >= 10:  # GD217
        x = x.relu()
    return self.linear(x)


BEGUN = time.monotonic()


def waits(self: Counting, x: torch.Tensor) -> torch.Tensor:
    if time.monotonic() > BEGUN + 3000:  # GD208
        x = x.relu()
    return self.linear(x)


def test_a_branch_on_a_clock_is_a_finding_with_its_line() -> None:
    (finding,) = (one for one in report_of(waits).findings if one.effect == "replay-is-wrong")
    assert finding.rule == "GD208" and line_of(finding).endswith("# GD208")


def test_a_branch_on_a_count_that_seldom_changes_is_a_finding_with_its_line() -> None:
    (finding,) = (one for one in report_of(epoch).findings if one.effect == "replay-is-wrong")
    assert finding.rule == "GD217" and line_of(finding).endswith("# GD217")
    assert "differs in a later step" in finding.message


@pytest.mark.parametrize("forward", [period, warmup, flag, schedule_table, full_window])
def test_a_branch_on_state_that_steps_change_is_a_finding_with_its_line(forward: Forward) -> None:
    report = report_of(forward)
    (finding,) = (one for one in report.findings if one.effect == "replay-is-wrong")
    assert (finding.rule, report.verdict) == ("GD217", "unsafe")
    assert line_of(finding).endswith("# GD217")
    assert "more step" in finding.message


def test_the_first_step_that_differs_is_named() -> None:
    # Two warmup calls, and the recorded steps begin with the third call.
    assert "after 13 more steps" in report_of(period).findings[0].message
    assert "after 498 more steps" in report_of(warmup).findings[0].message


def logs(self: Counting, x: torch.Tensor) -> torch.Tensor:
    if self.calls % 100 == 0:
        print("call", self.calls)
    return self.linear(x)


def same_work(self: Counting, x: torch.Tensor) -> torch.Tensor:
    if self.calls > 50:
        return self.linear(x)
    return self.linear(x)


@pytest.mark.parametrize("forward", [logs, same_work, lambda self, x: self.linear(x)])
def test_counters_and_logs_are_a_remark(forward: Forward) -> None:
    report = report_of(forward)
    assert (report.verdict, report.findings) == ("safe", ()), report.reason
    assert any("model.calls" in remark for remark in report.limits)


def times_itself(self: Counting, x: torch.Tensor) -> torch.Tensor:
    begun = time.perf_counter()
    y = self.linear(x)
    self.seconds = time.perf_counter() - begun
    return y


def branches_on_modes(self: Counting, x: torch.Tensor) -> torch.Tensor:
    if torch.is_autocast_enabled() or not torch.is_grad_enabled():
        x = x * 2
    if torch.is_inference_mode_enabled() or torch.are_deterministic_algorithms_enabled():
        x = x * 3
    if torch.get_default_dtype() == torch.float64:
        x = x * 4
    if torch.get_float32_matmul_precision() == "high":
        x = x * 5
    if not torch.backends.cuda.flash_sdp_enabled() or torch.cuda.current_stream() is None:
        x = x * 6
    return self.linear(x)


@pytest.mark.parametrize("forward", [times_itself, branches_on_modes])
def test_clocks_that_only_time_and_branches_on_torchs_modes_say_nothing(forward: Forward) -> None:
    report = report_of(forward)
    assert (report.verdict, report.findings) == ("safe", ()), report.reason
    assert not any("Each step reads" in remark for remark in report.limits)


def draws(self: Counting, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x) * random.uniform(0.5, 1.5)  # GD207


def reads_the_clock(self: Counting, x: torch.Tensor) -> torch.Tensor:
    phase = time.perf_counter() % 1.0  # GD208
    return self.linear(x + phase)


@pytest.mark.parametrize(("forward", "rule"), [(draws, "GD207"), (reads_the_clock, "GD208")])
def test_draws_and_clocks_that_reach_the_gpu_are_findings(forward: Forward, rule: str) -> None:
    report = report_of(forward)
    assert report.verdict == "unsafe"
    assert next(line_of(one) for one in report.findings if one.rule == rule).endswith(f"# {rule}")


SCALES = iter([float(i) for i in range(1000)])
WAITING: queue.Queue[float] = queue.Queue()


def takes_an_item(self: Counting, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x) * next(SCALES)  # item


def takes_from_a_queue(self: Counting, x: torch.Tensor) -> torch.Tensor:
    WAITING.put(1.0)
    return self.linear(x) * WAITING.get()  # item


@pytest.mark.parametrize("forward", [takes_an_item, takes_from_a_queue])
def test_an_item_that_a_step_takes_is_a_finding(forward: Forward) -> None:
    report = report_of(forward)
    assert report.verdict == "unsafe"
    assert any(line_of(one).endswith("# item") for one in report.findings)


def reads_the_environment(self: Counting, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x) if os.environ.get("HOME") != "" else x


def reads_a_file(self: Counting, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x) if os.path.exists(__file__) else x


def starts_a_thread(self: Counting, x: torch.Tensor) -> torch.Tensor:
    thread = threading.Thread(target=len, args=((),))
    thread.start()
    thread.join()
    return self.linear(x)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (reads_the_environment, "the environment variable HOME (test_promises.py:"),
        (reads_a_file, "os.path.exists() (test_promises.py:"),
        (starts_a_thread, "work to another thread (test_promises.py:"),
    ],
)
def test_what_a_step_reads_outside_itself_is_one_remark(forward: Forward, words: str) -> None:
    report = report_of(forward)
    assert (report.verdict, report.findings) == ("safe", ()), report.reason
    assert len([remark for remark in report.limits if words in remark]) == 1


def test_state_of_every_place_is_restored() -> None:
    def forward(self: Counting, x: torch.Tensor) -> torch.Tensor:
        held["buffer"].add_(1)
        self.losses.append(1.0)
        return self.linear(x + held["buffer"])

    with graphdoctor.EmulatedDevice():
        held: dict[str, Any] = {"buffer": torch.zeros((), device="cuda")}
        model = Counting(forward).cuda()
        graphdoctor.analyze(model, torch.randn(4, 8, device="cuda"), strategies=())
        assert (model.calls, list(model.losses), held["buffer"].item()) == (0, [], 0.0)


def test_an_optimizer_in_the_closure_of_gradient_hooks_is_restored() -> None:
    model = nn.Linear(8, 8)
    optimizers = {p: torch.optim.Adam([p], capturable=True) for p in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()  # type: ignore[no-any-return]

    graphdoctor.analyze(step, torch.randn(4, 8), device="emulated", strategies=(), iterations=3)
    assert all(map(torch.equal, before, model.parameters()))
    assert not any(optimizer.state for optimizer in optimizers.values())
