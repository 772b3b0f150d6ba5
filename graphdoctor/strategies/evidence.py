"""What the stages of one analysis found -> its report."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import torch

from graphdoctor import __version__
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.open import AnyDevice
from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.diagnose.suppress import suppress
from graphdoctor.diagnose.verdict import WHOLE, judge
from graphdoctor.measure.speed import Speed
from graphdoctor.partition import Plan
from graphdoctor.proof.stage import Captured
from graphdoctor.record import Session
from graphdoctor.rules.fragmented import fragmented
from graphdoctor.rules.not_launch_bound import not_launch_bound
from graphdoctor.target import Target
from graphdoctor.values.recording import Recording
from graphdoctor.values.report import SCHEMA_VERSION, Finding, Machine, Report, TargetInfo


@dataclass(frozen=True, slots=True)
class Evidence:
    """What each stage of one analysis gave."""

    session: Session
    recording: Recording
    diagnosis: Diagnosis
    plan: Plan
    captured: Captured
    speed: Speed


def assemble(evidence: Evidence) -> Report:
    """The report of an analysis that ran to its end."""
    session, recording = evidence.session, evidence.recording
    regions = tuple(planned.region for planned in evidence.plan.regions)
    found = (*_confirmed(evidence), *_about_speed(evidence))
    # The verdict is about the step, not about what its author wants to hear of: it counts them all.
    findings, idle_comments = suppress(found, recording, file=session.target.file)
    doubts = tuple(_doubts(recording))
    verdict, reason = judge(
        findings,
        regions,
        evidence.captured.outcomes,
        doubts,
        has_fixed_inputs=session.target.has_fixed_inputs,
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        target=_target_info(session.target),
        machine=_machine(session.device),  # type: ignore[arg-type]
        verdict=verdict,
        reason=reason,
        findings=findings,
        regions=regions,
        safe_modules=evidence.plan.safe_modules,
        captures=evidence.captured.outcomes,
        estimate=evidence.speed.estimate,
        measurement=evidence.speed.measurement,
        operators=len(recording.captured[-1].ops),
        iterations=len(recording.captured),
        limits=(*recording.limits, *doubts, *evidence.speed.limits),
        idle_comments=idle_comments,
    )


def could_not_run(target: Target, device: AnyDevice, why: str) -> Report:
    """The report of a step that the emulated device cannot run: nothing is known, and that is said."""
    return Report(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        target=_target_info(target),
        machine=_machine(device),
        verdict="unknown",
        reason=f"Not verified: {why}",
        findings=(),
        regions=(),
        safe_modules=(),
        captures=(),
        estimate=None,
        measurement=None,
        operators=0,
        iterations=0,
        limits=(why,),
    )


def _target_info(target: Target) -> TargetInfo:
    return TargetInfo(
        name=target.name, file=target.file, entry=target.entry, mode=target.mode, notes=target.notes
    )


def _machine(device: AnyDevice) -> Machine:
    emulated = isinstance(device, EmulatedDevice)
    return Machine(
        device=device.kind,  # type: ignore[arg-type]
        device_name="emulated CUDA device" if emulated else torch.cuda.get_device_name(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        platform=platform.platform(),
    )


def _confirmed(evidence: Evidence) -> Iterator[Finding]:
    """The findings; those that the (emulated) machine showed in this analysis are marked so."""
    whole = next((c for c in evidence.captured.outcomes if c.scope == WHOLE), None)
    refused_at = whole.location if whole is not None and whole.status == "refused" else None
    wrong = {
        difference.location
        for capture in evidence.captured.outcomes
        if capture.verification is not None
        for difference in capture.verification.differences
    }
    for finding in evidence.diagnosis.findings:
        shown = (finding.effect == "capture-fails" and finding.location == refused_at) or (
            finding.effect == "replay-is-wrong" and finding.location in wrong
        )
        if shown and finding.location is not None:
            yield msgspec.structs.replace(finding, certainty="confirmed")
        else:
            yield finding


def _about_speed(evidence: Evidence) -> Iterator[Finding]:
    regions = [planned.region for planned in evidence.plan.regions]
    for finding in (not_launch_bound(evidence.speed.estimate), fragmented(regions)):
        if finding is not None:
            yield finding


def _doubts(recording: Recording) -> Iterator[str]:
    """Where the emulated result may not be a GPU's, each reason once."""
    seen = dict.fromkeys(
        op.fallback
        for iteration in recording.captured
        for op in iteration.ops
        if op.fallback is not None
    )
    yield from seen
