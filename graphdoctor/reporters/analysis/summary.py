"""Report -> the few lines at the top of the page, for a reader who reads no further."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graphdoctor.reporters.analysis.captures import is_wrong
from graphdoctor.reporters.analysis.findings import active, worst_first
from graphdoctor.reporters.analysis.gain import basis_text, fed_by_text
from graphdoctor.reporters.analysis.strategies import advice_label
from graphdoctor.reporters.page import Page, blocks
from graphdoctor.values.captures import outcome_of_whole_step
from graphdoctor.values.figures import ratio_range, share_range, time_range
from graphdoctor.values.finding import Effect
from graphdoctor.values.locations import place_text
from graphdoctor.values.report import Report, Verdict
from graphdoctor.values.speed import NO_STRATEGY, StrategyOutcome

WHOLE = "whole"  # the strategy whose gain is that of the graph that was captured
VERDICTS: dict[Verdict, tuple[str, str]] = {
    "safe": ("SAFE", "bold green"),
    "partly-safe": ("PARTLY SAFE", "bold yellow"),
    "unsafe": ("UNSAFE", "bold red"),
    "unknown": ("UNKNOWN", "bold blue"),
}
_CONSEQUENCES: dict[Effect, tuple[str, str]] = {
    "capture-fails": ("makes the capture fail", "make the capture fail"),
    "replay-is-wrong": ("makes replays wrong", "make replays wrong"),
    "replay-is-slow": ("costs speed", "cost speed"),
}


def write_summary(page: Page, report: Report) -> None:
    """The verdict, its reason, and what to do."""
    word, style = VERDICTS[report.verdict]
    page.line((word, style), (f"  {report.target.name}, {report.target.mode}", "dim"))
    page.paragraph(report.reason, style="bold")
    page.blank()
    for label, text in summary_rows(report, page.look.base):
        page.labelled(f"  {label}", text)


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
    first_block = next(blocks(worst.fix), "")
    sentence = " ".join(first_block.split()).partition(". ")[0].rstrip(".:")
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
        f" launch-bound {share_range(report.estimate.launch_bound_share)}"
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
    bound = share_range(estimate.launch_bound_share)
    if is_cut and not any(region.worthwhile for region in report.regions):
        return f"none as the code is: no region is large enough to pay; launch-bound {bound}"
    said = ratio_range(estimate.speedup)
    if estimate.basis == "predicted":  # the device's time is known better than the host's
        time = time_range(estimate.graph_us)
        said = f"{time} a step, {said}" if is_cut else f"{time} a step as a graph, {said}"
    if is_cut:
        said = f"{said} with each region as one graph"
        if report.recommendation is not None and report.recommendation.strategy == NO_STRATEGY:
            said = f"none verified as the code is; {said}, once it is cut there"
    return f"{said}, {basis_text(estimate)}{fed_by_text(estimate)}; launch-bound {bound}"
