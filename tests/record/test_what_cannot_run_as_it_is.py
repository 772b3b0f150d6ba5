"""Compiled code, and steps that only eager can run: said, and no crash."""

from __future__ import annotations

import itertools
import linecache
from typing import Any

import pytest
import torch

import graphdoctor
from graphdoctor.record.place import COMPILED
from graphdoctor.values.report import Report


def analyzed(subject: object, *inputs: torch.Tensor) -> Report:
    return graphdoctor.analyze(subject, *inputs, device="emulated", strategies=())


def test_a_compiled_part_is_analysed_as_eager_and_that_is_said() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    model.register_module("0", torch.compile(model[0]))  # type: ignore[arg-type]
    report = analyzed(model, torch.randn(2, 8))
    assert report.verdict == "safe"
    assert COMPILED in report.target.notes


def test_a_module_compiled_in_place_and_a_compiled_function_are_too() -> None:
    model = torch.nn.Linear(8, 8)
    model.compile()
    double = torch.compile(lambda x: x * 2)
    for subject in (model, lambda x: double(x) + 1):
        report = analyzed(subject, torch.randn(2, 8))
        assert (report.verdict, COMPILED in report.target.notes) == ("safe", True)


def test_what_is_compiled_while_the_target_is_made_is_said_too() -> None:
    def target() -> object:
        return torch.compile(torch.nn.Linear(8, 8).eval()), (torch.randn(2, 8),)

    assert COMPILED in analyzed(target).target.notes


def test_what_is_not_compiled_has_no_such_note() -> None:
    assert COMPILED not in analyzed(torch.nn.Linear(8, 8), torch.randn(2, 8)).target.notes


def test_a_step_that_raises_while_it_is_captured_only_is_unsafe() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(3) if torch.cuda.is_current_stream_capturing() else torch.ones(4)
        return x + mask.to(x.device)  # the sizes differ

    report = analyzed(step, torch.randn(2, 4))
    (finding,) = report.findings
    assert (report.verdict, finding.rule, finding.effect) == ("unsafe", "GD214", "capture-fails")
    assert "Running the step in eager worked, but running it as in a capture" in finding.message
    assert finding.location is not None
    assert linecache.getline(__file__, finding.location.line).endswith("# the sizes differ\n")


def test_a_step_that_raises_now_and_then_is_not_said_to_raise_while_it_is_captured() -> None:
    calls = itertools.count(1)

    def step(x: torch.Tensor) -> torch.Tensor:
        if next(calls) == 3:  # after two warm-ups
            raise ValueError("now and then")
        return x * 2

    report = analyzed(step, torch.randn(2, 4))
    (finding,) = report.findings
    assert (report.verdict, finding.rule) == ("unsafe", "GD218")
    assert "takes the next element of calls." in finding.message


def test_a_tensor_left_on_the_cpu_is_not_explained_as_a_frozen_scalar() -> None:
    def target() -> object:
        kept = torch.zeros(4, device="cuda")
        return lambda x: kept.clone() + x, (torch.randn(4),)

    report = analyzed(target)
    assert "GD211" not in {finding.rule for finding in report.findings}
    assert any("aten.add.Tensor receives GPU and CPU tensors" in one for one in report.limits)


@pytest.mark.parametrize("trained", [False, True])
def test_torch_cond_reads_its_predicate_and_runs_one_branch(trained: bool) -> None:
    model = torch.nn.Linear(8, 8)

    def step(x: torch.Tensor) -> torch.Tensor:
        branches = (lambda a: model(a).sin()), (lambda a: model(a).cos())
        y: torch.Tensor = torch.cond(x.sum() > 0, *branches, (x,)).sum()
        if trained:
            y.backward()
        return y.detach()

    report = analyzed(step, torch.randn(2, 8))
    assert (report.verdict, report.findings[0].rule) == (
        "partly-safe" if trained else "unsafe",
        "GD101",
    )


def test_operators_in_higher_order_operators_are_seen() -> None:
    scan = pytest.importorskip("torch._higher_order_ops.scan").scan

    def step(x: torch.Tensor) -> object:
        return scan(lambda carry, row: (carry + row, carry * row.sum().item()), x[0] * 0, x)

    if not hasattr(
        torch.utils._python_dispatch.TorchDispatchMode, "supports_higher_order_operators"
    ):
        pytest.skip("this torch lets no mode see higher-order operators")
    assert "GD101" in {finding.rule for finding in analyzed(step, torch.randn(5, 8)).findings}


def scripted() -> Any:
    return torch.jit.script(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))


def exported() -> torch.nn.Module:
    return torch.export.export(torch.nn.Linear(8, 8), (torch.randn(2, 8),)).module()


@pytest.mark.parametrize("make", [scripted, exported])
def test_a_model_made_into_a_program_inside_the_target_is_analysed(make: Any) -> None:
    assert analyzed(lambda: (make(), (torch.randn(2, 8),))).verdict == "safe"


def test_operators_made_for_cpus_are_not_called_safe() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8))
    model = torch.ao.quantization.quantize_dynamic(layers, {torch.nn.Linear})
    report = analyzed(model, torch.randn(2, 8))
    assert report.verdict == "unknown"
    assert "quantized.linear_dynamic.default is made for CPUs" in report.reason


class EverySecondRaises(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = torch.nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls % 2 == 0:
            raise ValueError("every second call")
        return self.linear(x)


def test_a_step_that_raises_in_every_second_call_is_not_blamed_on_the_capture() -> None:
    report = analyzed(lambda: (EverySecondRaises().cuda(), (torch.randn(4, 8, device="cuda"),)))
    assert not report.findings
    assert "every second call" in report.reason


def test_the_second_attempt_at_a_step_that_raises_has_its_inputs_on_the_device() -> None:
    model = EverySecondRaises()
    report = analyzed(model, torch.randn(4, 8))
    assert not report.findings
    assert "every second call" in report.reason and "on the CPU" not in report.reason
    assert model.calls == 0 and not model.linear.weight.is_cuda
