"""Judge a step from what the stages found: the verdict and its reason in at most three sentences."""

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
from graphdoctor.values.finding import Finding, by_cure
from graphdoctor.values.report import Verdict

_OPEN = "The rest of the step is not verified"


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
    if refused := rejected_by_gpu(reasons):
        return "unknown", f"A GPU cannot run this step: {refused}."
    blocking = [finding for finding in findings if finding.effect != "replay-is-slow"]
    whole = outcome_of_whole_step(captures)
    if blocking:
        is_open = not has_values and (is_cut_short or any(one.worthwhile for one in regions))
        return _with_findings(blocking, regions, captures, is_open=is_open)
    if whole is None or whole.status == "refused":
        reason = whole.reason if whole is not None else "no capture was tried"
        return "unsafe", f"Capture of the whole step failed: {reason}"
    verification = whole.verification
    if verification is None or verification.status == "not-verified":
        reason = (
            verification.reason if verification is not None else "no replay was compared with eager"
        )
        return "unknown", f"No hazard was found, but the replay could not be verified: {reason}"
    if verification.status == "wrong":
        return "unsafe", f"Capture succeeds, but a replay differs from eager: {verification.reason}"
    if reasons:
        return "unknown", f"No hazard was found, but the result is not verified: {reasons[0]}"
    if parting_inputs:
        return "unknown", (
            f"No hazard was found for the given values of {names_text(parting_inputs)}. Other values take a"
            " different branch, and a graph contains only the captured branch."
        )
    replays = f"The whole step can be captured. {verification.replays} replays"
    less = ""
    if stopped:
        more = f" and {len(stopped) - 1} more" if len(stopped) > 1 else ""
        less = f" Replays do not update {stopped[0]}{more}: a replay runs no Python."
    path = f" {verification.path}" if verification.path else ""
    if verification.inputs == ON_FRESH_INPUTS:
        return "safe", f"{replays} {ON_FRESH_INPUTS} matched eager{path}.{less}"
    return "safe", f"{replays} matched eager{path}, {verification.inputs}.{less}"


def rejected_by_gpu(reasons: Sequence[str]) -> str:
    """The reason why a GPU cannot run the step, "" if a GPU can."""
    return next((reason for reason in reasons if ON_BOTH_DEVICES in reason), "")


def _with_findings(
    blocking: Sequence[Finding],
    regions: Sequence[Region],
    captures: Sequence[CaptureOutcome],
    *,
    is_open: bool,
) -> tuple[Verdict, str]:
    effects = [cause[0].effect for cause in by_cure(blocking, lambda finding: finding)]
    fails = effects.count("capture-fails")
    wrong = len(effects) - fails
    parts = []
    if fails:
        verb = "blocks" if fails == 1 else "block"
        parts.append(f"{count_text(fails, 'finding')} {verb} whole-step capture")
    if wrong:
        verb = "makes" if wrong == 1 else "make"
        parts.append(f"{count_text(wrong, 'finding')} {verb} replays wrong")
    reason = " and ".join(parts)
    if is_open:
        return "unknown", f"{reason}. {_OPEN}, because the step ran without values."
    verified = {capture.region: capture.verification for capture in captures if capture.is_verified}
    safe = [region for region in regions if region.worthwhile and region.name in verified]
    if not safe and (open_reason := _not_compared(regions, captures)):
        return "unknown", f"{reason}. {_OPEN}: {open_reason}"
    if not safe:
        return "unsafe", f"{reason}. No region is worth capturing."
    shown = verified[safe[0].name]
    tried_on = f", shown {shown.inputs}" if shown and shown.inputs != ON_FRESH_INPUTS else ""
    is_worth = "is" if len(safe) == 1 else "are"
    return "partly-safe", (
        f"{reason}. {len(safe)} of {count_text(len(regions), 'region')} {is_worth} worth capturing{tried_on}."
    )


def _not_compared(regions: Sequence[Region], captures: Sequence[CaptureOutcome]) -> str:
    """Why the replay of a part worth capturing, which was captured, could not be compared; "" for none."""
    worthwhile = {region.name for region in regions if region.worthwhile}
    for capture in captures:
        done = capture.verification
        if capture.region in worthwhile and done is not None and done.status == "not-verified":
            return f"{done.reason.rstrip('.')}."
    return ""
