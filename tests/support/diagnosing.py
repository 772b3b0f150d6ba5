"""A target's description in, its recording on the emulated device and its diagnosis out."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import torch

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.diagnose.diagnose import Diagnosis, diagnose
from graphdoctor.proof.stage import prove_whole_step
from graphdoctor.proof.twins import EagerRuns
from graphdoctor.record import prepare, record
from graphdoctor.record.place import place
from graphdoctor.target import from_object
from graphdoctor.values.captures import CaptureOutcome
from graphdoctor.values.recording import Recording
from graphdoctor.values.report import Report

_MARK = re.compile(r"#\s*<- (GD\d{3})\s*$")


def cuda(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def recorded(example: Callable[[], object], *, iterations: int = 4) -> Recording:
    with EmulatedDevice() as device:
        target = place(from_object(example), device)
        try:
            session = prepare(target, device, iterations=iterations)
            return record(session, progress=lambda doing: None)
        finally:
            target.close()


def reported(step: Callable[..., object]) -> Report:
    """Of a step that takes one batch of four rows, without strategies."""
    x = torch.randn(4, 8)
    return graphdoctor.analyze(step, x, device="emulated", strategies=(), iterations=3)


def diagnosed(example: Callable[[], object]) -> Diagnosis:
    return diagnose(recorded(example))


def marked(example: Callable[[], object]) -> set[tuple[str, int]]:
    """The rules and lines that the comments in an example promise."""
    lines, first = inspect.getsourcelines(example)
    found = ((_MARK.search(line), first + offset) for offset, line in enumerate(lines))
    return {(match[1], line) for match, line in found if match is not None}


def found(diagnosis: Diagnosis) -> set[tuple[str, int]]:
    return {
        (finding.rule, finding.location.line if finding.location else 0)
        for finding in diagnosis.findings
    }


def judged(example: Callable[[], object]) -> tuple[Diagnosis, CaptureOutcome]:
    """The diagnosis, and what comes of capturing the step and replaying it, by one session as in an analysis."""
    with EmulatedDevice() as device:
        target = place(from_object(example), device)
        try:
            session = prepare(target, device, iterations=4)
            ran = EagerRuns(session)
            recording = record(session, progress=lambda doing: None, look=ran.look)
            outcome, graph = prove_whole_step(session, ran=ran)
            if graph is not None:
                graph.release()
        finally:
            target.close()
    return diagnose(recording), outcome


def assert_followed(
    rule: str, bad: Callable[[], object], said: str, good: Callable[[], object]
) -> None:
    """The fix of `bad` says so, and `good`, which does so, has no finding and replays right."""
    fixes = [
        "\n".join((finding.fix, "", *(f"    {line}" for line in finding.fix_code)))
        for finding in diagnosed(bad).findings
        if finding.rule == rule
    ]
    assert any(said in fix for fix in fixes), fixes
    diagnosis, outcome = judged(good)
    assert diagnosis.findings == ()
    assert outcome.status == "captured"
    assert outcome.verification is not None
    assert outcome.verification.status == "verified", outcome.verification.reason
