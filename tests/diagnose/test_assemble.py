"""The report says what is known, how surely, and of a step that could not be run nothing."""

from __future__ import annotations

from functools import lru_cache

import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.diagnose.assemble import could_not_run
from graphdoctor.pipeline import analyze
from graphdoctor.target import from_object


def test_of_a_step_that_could_not_run_nothing_is_counted_found_or_called_safe() -> None:
    with EmulatedDevice() as device:
        target = from_object(lambda data: data * 2.0, torch.ones(4))
        try:
            report = could_not_run(target, device, "no such kernel")
        finally:
            target.close()
    assert (report.verdict, report.reason) == ("unknown", "Not verified: no such kernel")
    assert report.limits == ("no such kernel",)
    assert (report.operators, report.iterations) == (0, 0)
    assert (report.estimate, report.measurement) == (None, None)
    assert not (report.findings or report.regions or report.safe_modules or report.captures)
    assert report.machine.device == "emulated"


def read_twice(x: torch.Tensor) -> float:
    smallest = x.min().item()
    return x.max().item() - smallest


def test_the_hazard_that_the_machine_refused_is_confirmed_and_the_others_are_not() -> None:
    report = analyze(read_twice, torch.ones(4))
    first = read_twice.__code__.co_firstlineno + 1
    reads = [one for one in report.findings if one.effect == "capture-fails"]
    assert [(one.location and one.location.line, one.certainty) for one in reads] == [
        (first, "confirmed"), (first + 1, "likely"),
    ]  # fmt: skip


def test_a_step_that_was_captured_has_no_confirmed_hazard() -> None:
    report = analyze(lambda x: x * 2, torch.ones(4))
    assert [capture.status for capture in report.captures] == ["captured"]
    assert not [one for one in report.findings if one.certainty == "confirmed"]


@lru_cache(maxsize=1)
def positions(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(4.0, device="cuda").to(dtype)


def reads_a_cache(x: torch.Tensor) -> torch.Tensor:
    return x + positions(x.dtype)


def test_memory_that_only_a_cache_holds_is_named() -> None:
    positions.cache_clear()
    report = analyze(reads_a_cache, torch.ones(4))
    assert report.verdict == "safe"
    line = reads_a_cache.__code__.co_firstlineno + 1
    (limit,) = [limit for limit in report.limits if "that only a cache or a closure holds" in limit]
    assert f"(test_assemble.py:{line})" in limit
    assert not [
        one for one in analyze(lambda x: x * 2, torch.ones(4)).limits if "only a cache" in one
    ]
