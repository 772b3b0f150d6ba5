"""Compiled code, and steps that only eager can run: said, and no crash."""

from __future__ import annotations

import linecache

import torch

import graphdoctor
from graphdoctor.record.place import COMPILED
from graphdoctor.values.report import Report


def analyzed(subject: object, *inputs: torch.Tensor) -> Report:
    return graphdoctor.analyze(subject, *inputs, device="emulated", strategies=())


def test_a_compiled_part_is_analysed_as_eager_and_that_is_said() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    model[0] = torch.compile(model[0])
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
