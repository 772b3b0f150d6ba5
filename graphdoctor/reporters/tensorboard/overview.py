"""A report and the runs that were kept -> the Markdown page that TensorBoard's text tab shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from graphdoctor.measure.speed import CAPTURED, ProfiledRun
from graphdoctor.reporters.check import wording
from graphdoctor.reporters.check.markdown import code, escaped
from graphdoctor.values.figures import EFFECT_WORDS, ratio_range, share_range, time_range, time_text
from graphdoctor.values.locations import place_text
from graphdoctor.values.report import Finding, Report

_ONLY_EAGER = (
    "There is no run of a captured graph: the device was emulated, so the trace shows the step on the"
    " CPU, its times are the CPU's, and times of a GPU are predicted."
)
_OFFLINE = (
    "The tab PYTORCH_PROFILER stays empty where its page cannot load a script from www.gstatic.com. The traces"
    " beside this file open in Perfetto, which ui.perfetto.dev serves or a copy of your own does, and"
    " `graphdoctor trace` reads those of a GPU."
)
_NO_GRAPH = "There is no run of a captured graph, because the step is not one verified graph."


def page_of(report: Report, runs: Sequence[ProfiledRun]) -> str:
    """Verdict, shares, findings and regions. Text from the model is shown and never interpreted."""
    parts = [
        f"# {escaped(report.target.name)}: {report.verdict}",
        escaped(report.reason),
        _table(("figure", "value"), _figures(report)),
        "## Findings",
        _findings(report),
        "## Regions",
        _regions(report),
        *_remarks(report, runs),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(report: Report) -> Iterator[tuple[str, str]]:
    yield "device", escaped(report.machine.device_name)
    found = report.estimate
    if found is not None:
        yield "launches a step", f"{found.launches:,}"
        yield "eager step" + _how(found.basis), time_range(found.eager_us)
        yield "device busy" + _how(found.basis), time_range(found.device_busy_us)
        yield "launch-bound share" + _how(found.basis), share_range(found.launch_bound_share)
        yield "step as graphs, predicted", time_range(found.graph_us)
        yield "speed-up, predicted", ratio_range(found.speedup)
    measured = report.measurement
    if measured is not None:
        yield "eager step, measured", time_text(measured.eager_us)
        yield "step as a graph, measured", time_text(measured.graph_us)
        bounds = f"{measured.speedup_low:.2f} to {measured.speedup_high:.2f}"
        yield "speed-up, measured", f"{measured.speedup:.2f}x ({bounds}): {measured.word}"


def _how(basis: str) -> str:
    return ", predicted" if basis == "predicted" else ", from a trace"


def _findings(report: Report) -> str:
    if not report.findings:
        return "None."
    rows = (
        (
            escaped(wording.title(finding)),
            EFFECT_WORDS[finding.effect],
            _place(finding),
            escaped(finding.message),
            escaped(wording.fix_line(finding)),
        )
        for finding in report.findings
    )
    return _table(("rule", "effect", "line", "what", "fix"), rows)


def _place(finding: Finding) -> str:
    # A bar ends a cell, also within code.
    place = finding.location
    return code(place_text(place).replace("|", "/")) if place is not None else ""


def _regions(report: Report) -> str:
    if not report.regions:
        return "None."
    rows = (
        (
            escaped(region.name),
            f"{region.launches:,}",
            "yes" if region.worthwhile else "no",
            escaped(region.reason),
        )
        for region in report.regions
    )
    return _table(("region", "launches", "worth a graph", "why"), rows)


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _remarks(report: Report, runs: Sequence[ProfiledRun]) -> Iterator[str]:
    if not any(run.name == CAPTURED for run in runs):
        yield _ONLY_EAGER if report.machine.device == "emulated" else _NO_GRAPH
    yield _OFFLINE
    yield "\n".join(f"- {escaped(limit)}" for limit in report.limits)
