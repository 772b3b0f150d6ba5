"""What the stages found -> the verdict, and the reason for it in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.record.operators import ON_BOTH_DEVICES
from graphdoctor.values.captures import (
    ON_FRESH_INPUTS,
    CaptureOutcome,
    Region,
    outcome_of_whole_step,
)
from graphdoctor.values.figures import count_text, names_text
from graphdoctor.values.finding import Finding
from graphdoctor.values.report import Verdict

_OPEN = "whether the rest of the step can be captured is not verified"


def judge(
    findings: Sequence[Finding],
    regions: Sequence[Region],
    captures: Sequence[CaptureOutcome],
    reasons: Sequence[str],
    *,
    parting_inputs: Sequence[str] = (),
    has_values: bool = True,
    is_cut_short: bool = False,
    stopped: Sequence[str] = (),
) -> tuple[Verdict, str]:
    """Safe only with proof: no finding that stops a capture or spoils a replay, and a verified replay.

    Without values nothing is proved of the regions of a step with hazards either, and a step that is
    cut short has some that nobody saw.
    `reasons` say why the emulated device's results may not be a GPU's. What replays prove is proved of
    the inputs that they had, and the sentence says of which. `parting_inputs` are those for other values
    of which the step is known to take another path: a graph holds one. `stopped` is Python state that
    replays leave alone: no tensor depends on it, so that the step is safe, and still does less.
    """
    refused = next((reason for reason in reasons if ON_BOTH_DEVICES in reason), "")
    if refused:
        return "unknown", f"A GPU does not run this step: {refused}."
    blocking = [finding for finding in findings if finding.effect != "replay-is-slow"]
    whole = outcome_of_whole_step(captures)
    if blocking:
        is_open = not has_values and (is_cut_short or any(one.worthwhile for one in regions))
        return _with_findings(blocking, regions, captures, is_open=is_open)
    if whole is None or whole.status == "refused":
        reason = whole.reason if whole is not None else "it was not captured"
        return "unsafe", f"The capture of the whole step was refused: {reason}"
    verification = whole.verification
    if verification is None or verification.status == "not-verified":
        reason = verification.reason if verification is not None else "its replay was not compared"
        return "unknown", f"No hazard was found, but the replay could not be verified: {reason}"
    if verification.status == "wrong":
        return "unsafe", f"It captures, but a replay computes something else: {verification.reason}"
    if reasons:
        return "unknown", f"No hazard was found, but the result is not verified: {reasons[0]}"
    if parting_inputs:
        return "unknown", (
            f"No hazard was found for the values of {names_text(parting_inputs)} as given, but the step"
            " takes another path for others, and a graph holds one path."
        )
    replays = f"The whole step can be captured; {verification.replays} replays"
    less = f" What it changes in Python stops: {stopped[0]}{_and_more(stopped)}." if stopped else ""
    path = f" {verification.path}" if verification.path else ""
    if verification.inputs == ON_FRESH_INPUTS:
        return "safe", f"{replays} {ON_FRESH_INPUTS} computed what eager computes{path}.{less}"
    return "safe", f"{replays} computed what eager computes{path}, {verification.inputs}.{less}"


def _and_more(names: Sequence[str]) -> str:
    return f", and {len(names) - 1} more" if len(names) > 1 else ""


def _with_findings(
    blocking: Sequence[Finding],
    regions: Sequence[Region],
    captures: Sequence[CaptureOutcome],
    *,
    is_open: bool,
) -> tuple[Verdict, str]:
    fails = sum(finding.effect == "capture-fails" for finding in blocking)
    wrong = len(blocking) - fails
    parts = []
    if fails:
        parts.append(f"{count_text(fails, 'hazard')} would make a capture fail")
    if wrong:
        parts.append(f"{count_text(wrong, 'hazard')} would make a replay compute something else")
    reason = " and ".join(parts)
    reason = f"{reason[0].upper()}{reason[1:]}"
    if is_open:
        return "unknown", f"{reason}; {_OPEN}, because it ran without values."
    verified = {capture.region: capture.verification for capture in captures if capture.is_verified}
    safe = [region for region in regions if region.worthwhile and region.name in verified]
    if not safe and (open_reason := _not_compared(regions, captures)):
        return "unknown", f"{reason}; {_OPEN}: {open_reason}"
    if not safe:
        return "unsafe", f"{reason}, and no part worth capturing remains."
    shown = verified[safe[0].name]
    tried_on = f", shown {shown.inputs}" if shown and shown.inputs != ON_FRESH_INPUTS else ""
    return "partly-safe", (
        f"{reason}; {count_text(len(safe), 'region')} of the step can be captured{tried_on}."
    )


def _not_compared(regions: Sequence[Region], captures: Sequence[CaptureOutcome]) -> str:
    """Why the replay of a part worth capturing, which was captured, could not be compared; "" for none."""
    worthwhile = {region.name for region in regions if region.worthwhile}
    for capture in captures:
        done = capture.verification
        if capture.region in worthwhile and done is not None and done.status == "not-verified":
            return f"{done.reason.rstrip('.')}."
    return ""
