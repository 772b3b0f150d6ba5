"""Write the verdict with its reason, the speedup, and the last lines of the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from graphdoctor.reporters.analysis.captures import is_wrong
from graphdoctor.reporters.analysis.findings import (
    active,
    causes_of,
    counts_text,
    entries_of,
    errors_of,
    why_one_is_confirmed,
    worst_first,
)
from graphdoctor.reporters.analysis.gain import basis_text, fed_by_text
from graphdoctor.reporters.analysis.strategies import advice_label
from graphdoctor.reporters.frame import SEVERITY_STYLES, Frame, Note, write_frame
from graphdoctor.reporters.page import Page
from graphdoctor.values.captures import Verification, outcome_of_whole_step
from graphdoctor.values.figures import Range, ratio_range, time_range, time_text
from graphdoctor.values.finding import Effect
from graphdoctor.values.locations import place_text
from graphdoctor.values.report import IN_TRAIN_MODE, Report, Verdict
from graphdoctor.values.speed import NO_STRATEGY, Estimate, Measurement, StrategyOutcome

EMULATED = "Trials used an emulated GPU; no real one is needed."
WHOLE = "whole"  # the strategy whose gain is that of the graph that was captured
_HOW = {
    WHOLE: "as one graph",
    "modules": "with a graph for each safe module",
    "segments": "with a graph for each region",
    "split-step": "with graphs between the optimizer's calls",
}
VERDICTS: dict[Verdict, tuple[str, str]] = {
    "safe": ("SAFE", "bold green"),
    "partly-safe": ("PARTLY SAFE", "bold yellow"),
    "unsafe": ("UNSAFE", "bold red"),
    "unknown": ("UNKNOWN", "bold blue"),
}
MEANINGS: dict[Verdict, str] = {
    "safe": "the whole step can run as one CUDA graph",
    "partly-safe": "as the code is, only parts of the step can run as CUDA graphs",
    "unsafe": "a capture fails, or its replay is wrong",
    "unknown": "no replay could be verified",
}
_CONSEQUENCES: dict[Effect, tuple[str, str]] = {
    "capture-fails": ("makes the capture fail", "make the capture fail"),
    "replay-is-wrong": ("makes replays wrong", "make replays wrong"),
    "replay-is-slow": ("costs speed", "cost speed"),
}


def write_verdict(page: Page, report: Report) -> None:
    """The verdict and its reason; of an unknown verdict, as a warning with what to do."""
    word, style = VERDICTS[report.verdict]
    is_trained = IN_TRAIN_MODE in report.target.notes
    mode = f"{report.target.mode}{', but the model is in train mode' if is_trained else ''}"
    page.line((word, style), (f"  {report.target.name} ({mode})", "dim"))
    if report.verdict != "unknown":
        reason = report.reason
        if report.verdict == "partly-safe":  # the reasons of others say what their word means
            meaning = MEANINGS[report.verdict]
            reason = f"{meaning[0].upper()}{meaning[1:]}. {reason}"
        page.paragraph(reason)
        return
    write_unknown(page, report)


def write_unknown(page: Page, report: Report, *, prefix: str = "") -> None:
    """The cause of an unknown verdict as a warning, with what to do."""
    warning = Frame(
        title="warning",
        title_style=SEVERITY_STYLES["warning"],
        headline=f"{prefix}{report.reason.removesuffix('.')}",
        notes=[Note("help", _help(report))],
    )
    write_frame(page, warning)


def _help(report: Report) -> str:
    """What to do about an unknown verdict."""
    if report.values == "none":
        return "add `--values real` to run the step with values, which can verify replays"
    if "later steps" in report.unreached:
        return "run the same command with more time, such as `--budget 5m`"
    if errors_of(report):
        return "fix the errors, then run the same command again"
    if report.machine.device == "emulated" and report.runs_on_gpu:
        return (
            "change the code that the warning names; if that code is right, run the same command on a"
            " machine with a GPU"
        )
    return "change the code that the warning names, then run the same command again"


def busy_text(estimate: Estimate) -> str:
    """How long the GPU works in an eager step: no graph takes less, so this bounds the speedup."""
    return f"GPU busy {time_range(estimate.device_busy_us)}"


def write_speedup(page: Page, report: Report) -> None:
    """Eager time and the speedup that can be had now; nothing if neither is known."""
    estimate, measured = report.estimate, report.measurement
    now = now_of(report)
    if estimate is None and measured is None and not now.text:
        return
    page.blank()
    if measured is not None:
        page.line(("Speedup", "bold"), (f", measured on {measured.gpu}", "dim"))
        eager = f"{time_text(measured.eager_us)} per step"
    elif estimate is not None:
        page.hanging("", f"Speedup, {basis_text(estimate)}{fed_by_text(estimate)}", style="bold")
        eager = f"{time_range(estimate.eager_us)} per step"
    else:
        page.line(("Speedup", "bold"))
        eager = ""
    if estimate is not None:
        eager = ", ".join(filter(None, (eager, busy_text(estimate))))
    if eager:
        page.hanging("  eager  ", eager)
    if now.text:
        page.hanging("  now    ", now.text, style="bold")
        advice = report.recommendation
        if (
            advice is not None
            and advice.code
            and advice.strategy != WHOLE
            and not page.look.show_all
        ):
            page.hanging("         ", "The same command with --all shows the code to paste.")
    if (fixed := fixed_of(report)) is not None:
        page.hanging(
            "  fixed  ",
            f"{ratio_range(fixed)} if all fixes make the whole step one graph",
            style="bold",
        )


class Now(NamedTuple):
    """What can be had without a change of the code, and how far it is verified; without a speedup, why not.

    `is_none`: no faster graph was found.
    """

    speedup: float | None
    text: str
    is_none: bool = False


def now_of(report: Report) -> Now:
    """Of the recommended strategy, or of the graphs that were captured."""
    advice = report.recommendation
    row = next(
        (one for one in report.strategies if advice and one.strategy == advice.strategy), None
    )
    if advice is not None and row is None:
        reason = advice.sentence.removesuffix(".").removeprefix("Keep eager: ")
        return _none(f"{reason[:1].lower()}{reason[1:]}")
    if row is None:
        return _now_without_strategies(report)
    how = _HOW.get(row.strategy, f"with {row.strategy}")
    check = row.verification
    proved = f"; replays {_matches(check)}" if check else ""
    if row.measurement is not None:
        return _measured_now(row.measurement, f"{how}{proved}")
    return _predicted_now(row.predicted, f"{how}{proved}")


def _now_without_strategies(report: Report) -> Now:
    """Of the graph of the whole step, or of regions as graphs."""
    measured, estimate = report.measurement, report.estimate
    whole = outcome_of_whole_step(report.captures)
    paying = sum(region.worthwhile for region in report.regions)
    is_whole = whole is not None and whole.status == "captured" and not is_wrong(whole)
    if whole is not None and is_wrong(whole) and not paying:
        return _none("the replay differs from eager")
    if measured is not None:
        return _measured_now(measured, "as one graph")
    if estimate is None:
        return Now(None, "")
    if is_whole or not report.regions:
        return _predicted_now(estimate.speedup, "as one graph")
    if not paying:
        return _none("no region is large enough to pay off")
    what = "1 region as a graph" if paying == 1 else f"{paying} regions as graphs"
    return _predicted_now(estimate.speedup, f"with {what}")


def _none(why: str) -> Now:
    return Now(None, f"none: {why}", is_none=True)


def _predicted_now(speedup: Range | None, how: str) -> Now:
    if speedup is None:
        return Now(None, how)
    return Now(speedup.mid, f"{ratio_range(speedup)} {how}")


def _measured_now(timed: Measurement, how: str) -> Now:
    bounds = f"({timed.speedup_low:.2f}x to {timed.speedup_high:.2f}x)"
    word = "" if timed.word == "faster" else f", {timed.word},"
    return Now(timed.speedup, f"{timed.speedup:.2f}x {bounds}{word} {how}")


def fixed_of(report: Report) -> Range | None:
    """The predicted speedup of the whole step as one graph after all errors are fixed; None without errors."""
    estimate = report.estimate
    return estimate.whole_speedup if estimate is not None and errors_of(report) else None


def _matches(check: Verification) -> str:
    if check.status == "wrong":
        return "differ from eager"
    if check.status == "not-verified":
        return "were not verified"
    if check.method == "bitwise":
        return "are bitwise equal to eager"
    return "equal eager within its nondeterminism"


def write_end(page: Page, report: Report) -> None:
    """Counts, and what to do next. They come last, next to the prompt."""
    page.blank()
    found = active(report.findings)
    causes = causes_of(entries_of(0, report.findings))
    counts = counts_text(causes, len(report.findings) - len(found))
    sentences = [f"{counts}."] if counts else []
    if reason := why_one_is_confirmed(found):
        sentences.append(reason)
    if report.machine.device == "emulated":
        sentences.append(EMULATED)
    if found:
        sentences.append(f"`graphdoctor explain {worst_first(found)[0].rule}` explains a rule.")
    if not page.look.show_all:
        sentences.append("Use --all for all details.")
    if sentences:
        page.paragraph(" ".join(sentences), style="dim")
    following = _next(report)
    if following:
        page.paragraph(f"Next: {following}", style="bold")


def _next(report: Report) -> str:
    """What to type or change; "" where a warning's help says it."""
    if report.verdict == "safe":
        if now_of(report).is_none:
            return "keep eager: a graph is not predicted to be faster."
        called = "model" if report.target.mode == "inference" else "step"
        return f"`{called} = graphdoctor.capture({called})` captures it; --all has the same in plain PyTorch."
    errors = errors_of(report)
    if not errors:
        return ""
    return (
        f"fix {'the error' if len(errors) == 1 else 'the errors'}, then run the same command again."
    )


def summary_rows(report: Report, base: str) -> Iterator[tuple[str, str]]:
    """What there is, what to do first, what it brings: labels and text; paths relative to `base`."""
    yield "Findings", _findings(report)
    if active(report.findings):
        yield "Do first", _first_step(report, base)
    if report.captures or report.regions:
        yield "Capture", _capture(report)
    yield "Gain", _gain(report)
    if report.recommendation is not None:
        advice = report.recommendation
        yield advice_label(advice), advice.sentence.partition(";")[0]


def _findings(report: Report) -> str:
    counted = active(report.findings)
    counts = Counter(finding.effect for finding in counted)
    parts = (
        f"{counts[effect]} {words[counts[effect] > 1]}"
        for effect, words in _CONSEQUENCES.items()
        if counts[effect]
    )
    text = ", ".join(parts) or "none"
    suppressed = len(report.findings) - len(counted)
    return f"{text}; {suppressed} suppressed" if suppressed else text


def _first_step(report: Report, base: str) -> str:
    """The worst finding with the first sentence of its fix."""
    worst = worst_first(active(report.findings))[0]
    place = f"{place_text(worst.location, base)}, " if worst.location else ""
    sentence = worst.fix.partition(". ")[0].rstrip(".:")
    return f"{place}{worst.rule} {worst.name}: {sentence}"


def _capture(report: Report) -> str:
    """How the whole step fared, else how many regions pay, and whether replays were right."""
    whole = outcome_of_whole_step(report.captures)
    if whole is not None and whole.status == "captured":
        status = whole.verification.status if whole.verification else "not-verified"
        words = {"verified": "verified", "wrong": "WRONG", "not-verified": "not verified"}
        return f"the whole step, as one graph; its replay is {words[status]}"
    paying = sum(region.worthwhile for region in report.regions)
    text = f"{paying} of {len(report.regions)} regions would pay" if report.regions else "none"
    if whole is not None:
        text = f"not as a whole; {text}" if report.regions else "refused"
    verified = sum(outcome.is_verified for outcome in report.captures)
    wrong = sum(is_wrong(outcome) for outcome in report.captures)
    text += f", {verified} replayed right" if verified else ""
    return f"{text}, {wrong} replayed WRONG" if wrong else text


def _gain(report: Report) -> str:
    """Of what is recommended, so that this line and that agree; else of the graph or its parts."""
    advised = _advised(report)
    if advised is None:
        return _gain_of_graph(report)
    if advised.measurement is not None:
        timed = advised.measurement
        return (
            f"{timed.speedup:.2f}x ({timed.word}) with {advised.strategy}, measured on {timed.gpu}"
        )
    if advised.predicted is None or report.estimate is None:
        return _gain_of_graph(report)
    return (
        f"{ratio_range(advised.predicted)} with {advised.strategy}, {basis_text(report.estimate)}"
        f"{fed_by_text(report.estimate)};"
        f" {_busy_in_eager(report.estimate)}"
    )


def _advised(report: Report) -> StrategyOutcome | None:
    """The row that is recommended, where that is another than the graph of the whole step."""
    advice = report.recommendation
    if advice is None or advice.strategy == WHOLE:
        return None
    return next((row for row in report.strategies if row.strategy == advice.strategy), None)


def _gain_of_graph(report: Report) -> str:
    measured, estimate = report.measurement, report.estimate
    if measured is not None:
        return f"{measured.speedup:.2f}x ({measured.word}), measured on {measured.gpu}"
    if estimate is None:
        return "not estimated"
    whole = outcome_of_whole_step(report.captures)
    is_whole = whole is not None and whole.status == "captured" and not is_wrong(whole)
    is_cut = bool(report.regions) and not is_whole
    busy = _busy_in_eager(estimate)
    if is_cut and not any(region.worthwhile for region in report.regions):
        return f"none as the code is: no region is large enough to pay; {busy}"
    said = ratio_range(estimate.speedup)
    if estimate.basis == "predicted":  # the device's time is known better than the host's
        time = time_range(estimate.graph_us)
        said = f"{time} a step, {said}" if is_cut else f"{time} a step as a graph, {said}"
    if is_cut:
        said = f"{said} with each region as one graph"
        if report.recommendation is not None and report.recommendation.strategy == NO_STRATEGY:
            said = f"none verified as the code is; {said}, once it is cut there"
    return f"{said}, {basis_text(estimate)}{fed_by_text(estimate)}; {busy}"


def _busy_in_eager(estimate: Estimate) -> str:
    return f"GPU busy for {time_range(estimate.device_busy_us)} of {time_range(estimate.eager_us)} in eager"
