"""Assembles the report of an analysis from what its stages found."""

from __future__ import annotations

import linecache
import platform
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from graphdoctor import __version__
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.meeting import RanksDiffer
from graphdoctor.device.open import AnyDevice
from graphdoctor.diagnose.diagnose import excerpt_at
from graphdoctor.diagnose.limits import doubts_of, limits_of, stopped_state
from graphdoctor.diagnose.suppress import suppress
from graphdoctor.diagnose.verdict import judge, rejected_by_gpu
from graphdoctor.record import Session
from graphdoctor.rules.capture_dependent_result import CaptureDependentResult
from graphdoctor.rules.collectives_differ import collectives_differ
from graphdoctor.rules.fragmented import fragmented
from graphdoctor.rules.not_launch_bound import not_launch_bound
from graphdoctor.target import Target
from graphdoctor.target.user_code import raised_at
from graphdoctor.values.captures import CaptureOutcome, Region, outcome_of_whole_step
from graphdoctor.values.errors import RaisesInCapture
from graphdoctor.values.figures import shortened
from graphdoctor.values.finding import Assumption, Finding
from graphdoctor.values.host_events import AssumedValue, CutShort
from graphdoctor.values.lanes import StepLanes
from graphdoctor.values.locations import Location, with_place
from graphdoctor.values.recording import Recording
from graphdoctor.values.report import SCHEMA_VERSION, Machine, Report, TargetInfo
from graphdoctor.values.speed import Estimate, GraphMemory, Measurement

_WHY_RAISES = (
    "Code can query whether a capture is active, and take another branch then. Here that branch raises,"
    " which ends the capture."
)
_NO_VALUES = "The step ran on shapes only: no replay was compared with eager, and no strategy or trace was tried."


@dataclass(frozen=True, slots=True)
class Results:
    """What came of a diagnosed step: what can be captured, what was, and how fast that is."""

    findings: tuple[Finding, ...]
    regions: tuple[Region, ...]
    safe_modules: tuple[str, ...]
    captures: tuple[CaptureOutcome, ...]
    estimate: Estimate
    measurement: Measurement | None = None
    limits: tuple[str, ...] = ()
    lanes: StepLanes | None = None
    memory: GraphMemory | None = None


def assemble(session: Session, recording: Recording, results: Results) -> Report:
    """The report of an analysis that ran to its end."""
    about_speed = (not_launch_bound(results.estimate), fragmented(results.regions))
    found = (*_confirmed(results), *(each for each in about_speed if each is not None))
    # The verdict is about the step, not about what its author wants to hear of: it counts them all.
    findings, idle_comments = suppress(found, recording, file=session.target.file)
    has_values = session.device.has_values
    ends = cut_short(recording)
    without = () if has_values else (_NO_VALUES, *ends)
    stopped = stopped_state(recording, found)
    doubts = doubts_of(recording)
    verdict, reason = judge(
        findings,
        results.regions,
        results.captures,
        (*without, *doubts),
        parting_inputs=session.target.parting_inputs,
        has_values=has_values,
        is_cut_short=bool(ends),
        stopped=stopped,
    )
    return replace(
        _empty(session.target, session.device),
        verdict=verdict,
        reason=reason,
        runs_on_gpu=not rejected_by_gpu(doubts),
        findings=findings,
        regions=results.regions,
        safe_modules=results.safe_modules,
        captures=results.captures,
        estimate=results.estimate,
        measurement=results.measurement,
        operators=len(recording.captured[-1].ops),
        iterations=len(recording.captured),
        limits=(*without, *limits_of(session.target, recording, doubts, stopped), *results.limits),
        idle_comments=idle_comments,
        memory=results.memory,
        values="real" if has_values else "none",
        assumptions=assumptions(recording),
        lanes=results.lanes,
        unreached=tuple(sorted(session.unreached)),
    )


def could_not_run(target: Target, device: AnyDevice, why: str) -> Report:
    """The report of a step that the emulated device cannot run: nothing is known, and that is said."""
    return replace(_empty(target, device), reason=f"Not verified: {why}", limits=(why,))


def raises_in_capture(target: Target, device: AnyDevice, error: RaisesInCapture) -> Report:
    """The report of a step that runs in eager and raises while it is captured: nothing else is known."""
    place, message = raised_at(error), f"{str(error)[:1].upper()}{str(error)[1:]}."
    finding = replace(
        CaptureDependentResult.finding(message, place),
        effect="capture-fails",
        why=_WHY_RAISES,
        excerpt=excerpt_at(place),
        certainty="confirmed",
    )
    return replace(
        _empty(target, device),
        verdict="unsafe",
        reason="The step raises where torch.cuda.is_current_stream_capturing() is true.",
        findings=(finding,),
        limits=("Nothing else is known: the step ends there.",),
    )


def _empty(target: Target, device: AnyDevice) -> Report:
    """The report of a step of which nothing is known."""
    return Report(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        target=target_info(target),
        machine=machine_info(device),
        verdict="unknown",
        reason="",
        findings=(),
        regions=(),
        safe_modules=(),
        captures=(),
        estimate=None,
        measurement=None,
        operators=0,
        iterations=0,
    )


def ranks_differ(target: Target, device: AnyDevice, found: RanksDiffer) -> Report:
    """The report of a step whose ranks would wait for each other for ever: it ended where they met."""
    finding = collectives_differ(str(found), found.location)
    return replace(
        could_not_run(target, device, f"The step was not run to its end: {found}."),
        verdict="unsafe",
        reason=f"The ranks would wait for each other forever: {found}.",
        findings=(finding,),
    )


def target_info(target: Target) -> TargetInfo:
    """What a report says of the target."""
    return TargetInfo(
        name=target.name, file=target.file, entry=target.entry, mode=target.mode, notes=target.notes
    )


def machine_info(device: AnyDevice) -> Machine:
    """What a report says of the machine that it was made on."""
    emulated = isinstance(device, EmulatedDevice)
    return Machine(
        device=device.kind,
        device_name="emulated CUDA device" if emulated else torch.cuda.get_device_name(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        platform=platform.platform(),
    )


def _confirmed(results: Results) -> Iterator[Finding]:
    """The findings; those that the (emulated) machine showed in this analysis are marked so."""
    whole = outcome_of_whole_step(results.captures)
    refused_at = whole.location if whole is not None and whole.status == "refused" else None
    wrong = {
        difference.location
        for capture in results.captures
        if capture.verification is not None
        for difference in capture.verification.differences
    }
    for finding in results.findings:
        shown = (finding.effect == "capture-fails" and finding.location == refused_at) or (
            finding.effect == "replay-is-wrong" and finding.location in wrong
        )
        if shown and finding.location is not None:
            yield replace(finding, certainty="confirmed")
        else:
            yield finding


def assumptions(recording: Recording) -> tuple[Assumption, ...]:
    """What values were assumed, once for each place and value, in the order of the step."""
    told = (
        Assumption(event.value, event.name, event.location, _code(event.location))
        for iteration in recording.captured
        for event in iteration.events_of(AssumedValue)
    )
    return tuple(dict.fromkeys(told))


def cut_short(recording: Recording) -> tuple[str, ...]:
    """Where the step failed with what was assumed: nothing is known of what comes after."""
    found = {
        f"The step was followed only to where it fails with what was assumed"
        f" ({with_place(event.error, event.location)}): what comes after that was not seen, and no"
        " launch or time of it is counted."
        for iteration in recording.captured
        for event in iteration.events_of(CutShort)
    }
    return tuple(sorted(found))


def _code(place: Location | None) -> str:
    line = linecache.getline(place.file, place.line).strip() if place is not None else ""
    return shortened(line)
