"""An assembled report: what was found where, and why what is missing is missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.meeting import RanksDiffer
from graphdoctor.diagnose import assemble as module
from graphdoctor.diagnose.assemble import (
    Results,
    assemble,
    raises_in_capture,
    ranks_differ,
)
from graphdoctor.target import from_object
from graphdoctor.values.captures import CaptureOutcome, Difference, Verification
from graphdoctor.values.errors import RaisesInCapture
from graphdoctor.values.finding import Finding
from graphdoctor.values.host_events import CutShort
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Recording
from graphdoctor.values.report import Report
from tests.diagnose.test_diagnose import iteration, op, recording
from tests.support.checking import finding
from tests.support.reports import PARTLY_SAFE, SAFE

VERIFIED = CaptureOutcome(
    "whole step", "captured", verification=Verification("verified", 3, 2, "bitwise")
)


def assembled(
    ran: Recording,
    *found: Finding,
    captures: tuple[CaptureOutcome, ...] = (VERIFIED,),
    limits: tuple[str, ...] = (),
    has_values: bool = True,
    **target: Any,
) -> Report:
    """The report of a hand-written recording."""
    given = {"file": "net.py", "parting_inputs": (), "parting_place": "", **target}
    device = SimpleNamespace(kind="emulated", has_values=has_values)
    session = SimpleNamespace(
        device=device,
        unreached=set(),
        target=SimpleNamespace(name="net", entry="net", mode="training", notes=(), **given),
    )
    results = Results(found, (), (), captures, PARTLY_SAFE.estimate, limits=limits)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "machine_info", lambda device: SAFE.machine)
        return assemble(session, ran, results)  # type: ignore[arg-type]


def test_operators_are_those_of_the_last_iteration() -> None:
    first, last = iteration(0, [op(0, "aten.a")]), iteration(1, [op(n, "aten.a") for n in range(3)])
    report = assembled(recording(first, last))
    assert (report.operators, report.iterations, report.verdict) == (3, 2, "safe")
    assert (report.values, report.limits) == ("real", ())


def test_where_the_emulation_may_differ_from_a_gpu_is_said_once_with_its_first_place() -> None:
    odd = {"fallback": "aten.odd ran on the CPU"}
    ops = [
        op(0, "aten.sin"),
        op(1, "aten.odd", location=Location("/src/net.py", 4), **odd),
        op(2, "aten.odd", location=Location("/src/net.py", 9), **odd),
        op(3, "aten.rare", fallback="aten.rare is not known"),
    ]
    report = assembled(recording(iteration(0, ops), iteration(1, ops)), limits=("a limit",))
    assert report.verdict == "unknown" and report.reason.endswith("(net.py:4)")
    assert report.limits == (
        "aten.odd ran on the CPU (net.py:4)", "aten.rare is not known", "a limit",
    )  # fmt: skip


def test_of_inputs_by_which_the_step_parts_nothing_is_said_but_for_the_values_as_given() -> None:
    report = assembled(
        recording(iteration(0, ())), parting_inputs=("size",), parting_place=" (net.py:3)"
    )
    assert report.verdict == "unknown"
    assert report.limits == (
        "The step takes another path for other values of `size` (net.py:3): what is said here holds"
        " for the numbers as given.",
    )


def test_without_values_the_report_says_what_was_not_tried() -> None:
    ended = CutShort("aten.item", error="it fails")
    ran = recording(iteration(0, (), events=[ended]))
    report = assembled(ran, finding(3), has_values=False)
    assert (report.values, report.verdict) == ("none", "unknown")
    assert len(report.limits) == 2
    assert "no replay was compared" in report.limits[0] and "it fails" in report.limits[1]
    assert assembled(ran, finding(3)).verdict == "unsafe"


def test_a_hazard_is_confirmed_where_a_replay_differed_on_its_line() -> None:
    here, there = Location("net.py", 3), Location("net.py", 9)
    wrong = replace(
        VERIFIED.verification,
        status="wrong",
        differences=(Difference("a", 1, 0.5, 0.5, location=here),),
    )
    captures = (replace(VERIFIED, verification=None), replace(VERIFIED, verification=wrong))
    spoils = [
        replace(finding(rule="GD203"), effect="replay-is-wrong", location=place)
        for place in (here, there, None)
    ]
    fails = replace(finding(rule="GD101"), location=here)
    report = assembled(recording(iteration(0, ())), *spoils, fails, captures=captures)
    assert [one.certainty for one in report.findings] == ["confirmed", "likely", "likely", "likely"]
    nowhere = replace(VERIFIED, status="refused", reason="a sync", verification=None)
    report = assembled(
        recording(iteration(0, ())), replace(fails, location=None), captures=(nowhere,)
    )
    assert [one.certainty for one in report.findings] == ["likely"]


def raised_in(folder: Path) -> ValueError:
    """An error that went through three files, one for each call."""
    calls: dict[str, Any] = {}
    for blank, (name, inner) in enumerate(
        (("outer", "middle()"), ("middle", "inner()"), ("inner", ""))
    ):
        body = f"return {inner}" if inner else "raise ValueError('no capture here')"
        path = folder / f"{name}.py"
        path.write_text("\n" * blank + f"def {name}():\n    {body}\n")
        exec(compile(path.read_text(), str(path), "exec"), calls)
    with pytest.raises(ValueError, match="no capture here") as raised:
        calls["outer"]()
    return raised.value


def test_a_step_that_raises_only_while_it_is_captured_is_unsafe_at_the_line_that_raises(
    tmp_path: Path,
) -> None:
    error = RaisesInCapture("the step raised ValueError: no capture here")
    error.__cause__ = raised_in(tmp_path)
    with EmulatedDevice() as device:
        target = from_object(lambda data: data * 2.0, torch.ones(4))
        try:
            report = raises_in_capture(target, device, error)
            bare = raises_in_capture(target, device, RaisesInCapture("it ended"))
        finally:
            target.close()
    (found,) = report.findings
    assert (report.verdict, found.effect, found.certainty) == (
        "unsafe", "capture-fails", "confirmed",
    )  # fmt: skip
    assert found.message == "The step raised ValueError: no capture here."
    assert found.location == Location(str(tmp_path / "inner.py"), 4, "inner")
    assert found.excerpt is not None
    assert "    raise ValueError('no capture here')" in found.excerpt.lines
    assert (report.operators, report.iterations) == (0, 0)
    assert bare.findings[0].location is None and bare.findings[0].excerpt is None


def test_ranks_that_would_wait_for_ever_are_unsafe_where_they_met() -> None:
    place = Location("train.py", 7)
    with EmulatedDevice() as device:
        target = from_object(lambda data: data * 2.0, torch.ones(4))
        try:
            report = ranks_differ(target, device, RanksDiffer("rank 1 calls barrier", place))
        finally:
            target.close()
    assert report.verdict == "unsafe"
    assert report.reason == "The ranks would wait for each other forever: rank 1 calls barrier."
    assert [one.location for one in report.findings] == [place]
    assert report.limits == ("The step was not run to its end: rank 1 calls barrier.",)
