"""Writes folders with traces, figures and text of the profiled runs, and the report with these files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from graphdoctor.diagnose.diagnose import Diagnosis
from graphdoctor.measure.profile import Profile
from graphdoctor.measure.speed import CAPTURED, EAGER, ProfiledRun
from graphdoctor.partition import Plan
from graphdoctor.reporters.check import wording
from graphdoctor.reporters.check.markdown import code, escaped
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.tensorboard import SAVED_REPORT
from graphdoctor.reporters.tensorboard.curves import (
    Curve,
    add_point,
    summary_writer,
    write_strategies,
)
from graphdoctor.rules.rule import Hit
from graphdoctor.strategies.evidence import Evidence
from graphdoctor.trace import Trace
from graphdoctor.trace.annotate import Note, anchor_in, annotate
from graphdoctor.trace.api import is_step_mark
from graphdoctor.trace.arrays import Ints
from graphdoctor.trace.explain.gaps import busiest_device, lanes_in
from graphdoctor.trace.intervals import NONE, nest
from graphdoctor.trace.read.names import KeptTrace
from graphdoctor.trace.steps import find_steps
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.figures import Range, ratio_range, share_range, time_range, time_text
from graphdoctor.values.finding import EFFECT_WORDS, Finding
from graphdoctor.values.locations import place_text
from graphdoctor.values.recording import Iteration, Op
from graphdoctor.values.report import Report

PAGE_TAG = "graphdoctor/report"


def with_traces(report: Report, evidence: Evidence) -> Report:
    """Add what the report says to each run that was kept; the report then names the files.

    What cannot be written costs itself and a sentence among the report's limits.
    """
    files: list[str] = []
    limits: list[str] = []
    kept_runs = (run.profile.kept for run in evidence.speed.runs)
    number = _next_number([kept.folder for kept in kept_runs if kept is not None])
    for run in evidence.speed.runs:
        kept = run.profile.kept
        if kept is None:
            continue
        files += [str(kept.tensorboard), str(kept.untouched)]
        try:
            if run.name == EAGER:
                # The profiled steps ran on the inputs of the first iteration, from the same state.
                iteration = evidence.recording.captured[0]
                notes = notes_of(
                    report.findings, evidence.diagnosis, evidence.plan, iteration, run.profile.trace
                )
                annotate(kept.untouched, kept.annotated, notes, run.profile.trace.threads)
                files.append(str(kept.annotated))
            page = page_of(report, evidence.speed.runs) if run.name == EAGER else None
            _write_events(kept.folder, number, scalars_of(run, report), page)
        except (GraphDoctorError, OSError) as error:
            limits.append(str(error))
    whole = msgspec.structs.replace(
        report,
        trace_files=(*report.trace_files, *files),
        limits=tuple(dict.fromkeys((*report.limits, *limits))),
    )
    return _saved(whole, evidence)


def with_strategies(report: Report, evidence: Evidence) -> Report:
    """Add what came of the strategies to the folder of the runs, and to the report that is saved there."""
    kept = _kept_of_eager(evidence)
    if kept is None:
        return report
    try:
        write_strategies(report, kept.folder.parent)
    except (GraphDoctorError, OSError) as error:
        limits = dict.fromkeys((*report.limits, str(error)))
        report = msgspec.structs.replace(report, limits=tuple(limits))
    return _saved(report, evidence)


def _saved(report: Report, evidence: Evidence) -> Report:
    """Saved beside the traces of the eager run, which the report then names too."""
    kept = _kept_of_eager(evidence)
    if kept is None:
        return report
    file = kept.folder / SAVED_REPORT
    named = tuple(dict.fromkeys((*report.trace_files, str(file))))
    whole = msgspec.structs.replace(report, trace_files=named)
    try:
        file.write_text(written_as("json", whole, Look()), encoding="utf-8")
    except OSError as error:
        return msgspec.structs.replace(report, limits=(*report.limits, str(error)))
    return whole


def _kept_of_eager(evidence: Evidence) -> KeptTrace | None:
    return next((run.profile.kept for run in evidence.speed.runs if run.name == EAGER), None)


def _next_number(folders: Sequence[Path]) -> int:
    """One more than the last analysis that was written there; 0 of the first.

    It is the step of all that this one writes, so that analyses into one folder make curves.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    except ImportError:
        return 0  # the writer, which cannot be imported either, says so
    files = [file for folder in folders for file in sorted(folder.glob("events.out.tfevents.*"))]
    return 1 + max(
        (
            event.step
            for file in files
            for event in EventFileLoader(str(file)).Load()
            if event.HasField("summary")
        ),
        default=-1,
    )


def _write_events(folder: Path, number: int, scalars: Sequence[Scalar], page: str | None) -> None:
    """Raises CannotDoItHere where TensorBoard is not installed."""
    writer = summary_writer()(log_dir=str(folder))
    try:
        for tag, value in scalars:
            point = number, value
            add_point(writer, Curve(tag, DESCRIPTIONS[tag], (point,)), point)
        if page is not None:
            writer.add_text(PAGE_TAG, page, number)
    finally:
        writer.close()


Scalar = tuple[str, float]
DESCRIPTIONS = {
    "step/measured_us": "Wall time of one step without the profiler, in microseconds, measured on the GPU.",
    "step/predicted_us": "Predicted wall time of one eager step, in microseconds.",
    "step/predicted_launch_bound_share": "Predicted share of the eager step in which the GPU waits for launches.",
    "step/predicted_with_graphs_us": "Predicted wall time of one step with CUDA graphs, in microseconds.",
    "trace/launches": "Launches in one profiled step.",
    "trace/device_busy_us": "Time in which the GPU is busy in one profiled step, in microseconds.",
    "trace/device_busy_share": "Share of the profiled steps in which the GPU is busy.",
    "trace/launch_bound_share": "Share of the profiled steps in which the GPU waits for launches.",
    "findings/unsafe": "Findings that forbid a CUDA graph, without suppressed ones.",
    "findings/slow": "Findings that only make a replay slow, without suppressed ones.",
    "speedup/predicted": "Predicted time of the eager step, divided by that with CUDA graphs.",
    "speedup/measured": "Measured time of the eager step, divided by that of the graph.",
}


def scalars_of(run: ProfiledRun, report: Report) -> tuple[Scalar, ...]:
    """Tags and values, few enough to be looked at, one point of each curve. Both runs have what their own trace
    shows, so that a chart compares them.

    What an analysis says of the two together stands in the eager run: it is always there. Ranges are in the text.
    """
    found = [*_measured(run, report), *_of_trace(run.profile)]
    if run.name == EAGER:
        found += [*_findings(report), *_predicted(report), *_speedup(report)]
    return tuple(found)


def _measured(run: ProfiledRun, report: Report) -> Iterator[Scalar]:
    """Wall time of one step without the profiler, where a GPU measured it."""
    measurement = report.measurement
    if measurement is not None:
        is_eager = run.name == EAGER
        yield "step/measured_us", measurement.eager_us if is_eager else measurement.graph_us


def _of_trace(profile: Profile) -> Iterator[Scalar]:
    """Of one step as profiled. Nothing without a GPU's events."""
    trace = profile.trace
    if not len(trace.device_events):
        return
    device = busiest_device(trace)
    steps = find_steps(trace, device).counted
    times = lanes_in(trace, device, [step.window for step in steps])
    span = times.span_ns or 1
    yield "trace/launches", times.launches / len(steps)
    yield "trace/device_busy_us", times.busy_ns / 1e3 / len(steps)
    yield "trace/device_busy_share", times.busy_ns / span
    yield "trace/launch_bound_share", times.launch_bound_ns / span


def _findings(report: Report) -> Iterator[Scalar]:
    """How many stand: what forbids a graph, and what only makes it slow."""
    slow = [
        finding.effect == "replay-is-slow"
        for finding in report.findings
        if finding.suppressed is None
    ]
    yield "findings/unsafe", len(slow) - sum(slow)
    yield "findings/slow", sum(slow)


def _predicted(report: Report) -> Iterator[Scalar]:
    found = report.estimate
    if found is None:
        return
    if found.basis == "predicted":
        yield "step/predicted_us", _shown(found.eager_us)
        yield "step/predicted_launch_bound_share", _shown(found.launch_bound_share)
    yield "step/predicted_with_graphs_us", _shown(found.graph_us)


def _speedup(report: Report) -> Iterator[Scalar]:
    if report.estimate is not None:
        yield "speedup/predicted", _shown(report.estimate.speedup)
    if report.measurement is not None:
        yield "speedup/measured", report.measurement.speedup


def _shown(predicted: Range) -> float:
    """To three digits, like the page: charts would stretch what changes beyond them over their height."""
    return float(f"{predicted.mid:.3g}")


_ONLY_EAGER = (
    "There is no run of a captured graph: the device was emulated, so the trace shows the step on the"
    " CPU, its times are the CPU's, and times of a GPU are predicted."
)
_OFFLINE = (
    "The tab PYTORCH_PROFILER stays empty where its page cannot load a script from www.gstatic.com; the tab"
    " GRAPHDOCTOR needs no network. Open the traces in this folder in Perfetto, at ui.perfetto.dev or in your own"
    " copy. `graphdoctor trace` reads the traces of a GPU."
)
_NO_GRAPH = "There is no run of a captured graph, because the step is not one verified graph."


def page_of(report: Report, runs: Sequence[ProfiledRun]) -> str:
    """Verdict, shares, findings and regions. Text from the model is shown and never interpreted."""
    parts = [
        f"# {escaped(report.target.name)}: {report.verdict}",
        escaped(report.reason),
        _table(("figure", "value"), _figures(report)),
        "## Findings",
        _findings_rows(report),
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
        yield "speedup, predicted", ratio_range(found.speedup)
    measured = report.measurement
    if measured is not None:
        yield "eager step, measured", time_text(measured.eager_us)
        yield "step as a graph, measured", time_text(measured.graph_us)
        bounds = f"{measured.speedup_low:.2f} to {measured.speedup_high:.2f}"
        yield "speedup, measured", f"{measured.speedup:.2f}x ({bounds}): {measured.word}"


def _how(basis: str) -> str:
    return ", predicted" if basis == "predicted" else ", from a trace"


def _findings_rows(report: Report) -> str:
    if not report.findings:
        return "None."
    rows = (
        (
            escaped(wording.title(finding)),
            EFFECT_WORDS[finding.effect],
            _place(finding),
            escaped(finding.message),
            escaped(finding.fix),
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


Step = tuple[int, int]


def notes_of(
    findings: Sequence[Finding],
    diagnosis: Diagnosis,
    plan: Plan,
    iteration: Iteration,
    trace: Trace,
) -> tuple[Note, ...]:
    """The notes for every profiled step; `iteration` is the recorded one that they stand for.

    A finding whose operators the step does not have is a span over the whole step.
    """
    found: list[Note] = []
    for step in steps_of(trace):
        rows = match_step(iteration.ops, trace, step)
        found.extend(_of_regions(plan, iteration, trace, rows))
        for finding in findings:
            found.extend(_of_finding(finding, diagnosis, iteration, (trace, step, rows)))
    return tuple(sorted(found, key=lambda note: note.track))


def _of_regions(plan: Plan, iteration: Iteration, trace: Trace, rows: Rows) -> Iterator[Note]:
    for planned in plan.regions:
        region = planned.region
        mine = [rows[index] for index in planned.ops_in(iteration.index) if index in rows]
        if not mine:
            continue
        yield Note(
            track=f"region {region.name}",
            name=f"region {region.name}: {region.launches} launches can be one graph",
            start_ns=int(trace.operators.start_ns[mine].min()),
            end_ns=int(trace.operators.end_ns[mine].max()),
            details=(
                ("operators", str(region.operators)),
                ("worthwhile", "yes" if region.worthwhile else "no"),
                ("why", region.reason),
                ("ends at", ", ".join(region.blocked_by) or "the step"),
            ),
        )


def _of_finding(
    finding: Finding,
    diagnosis: Diagnosis,
    iteration: Iteration,
    where: tuple[Trace, Step, Rows],
) -> Iterator[Note]:
    trace, step, rows = where
    track = f"{finding.rule} {finding.name}"
    places = {
        (hit.op_index, hit.between): hit
        for rule, hit in diagnosis.hits
        if rule == finding.rule
        and hit.iteration == iteration.index
        and hit.location == finding.location
    }
    drawn = [
        _at_hit(finding, hit, trace, rows)
        for _, hit in sorted(places.items())
        if hit.op_index in rows
    ]
    if not drawn:
        yield Note(track, finding.message, *step, details=_details(finding))
    yield from drawn


def _at_hit(finding: Finding, hit: Hit, trace: Trace, rows: Rows) -> Note:
    """Over the operator; what the host did between two operators is drawn in the time between them."""
    row, operators = rows[hit.op_index], trace.operators
    start, end = int(operators.start_ns[row]), int(operators.end_ns[row])
    anchor = anchor_in(int(operators.thread[row]), start, end)
    if hit.between:
        before = rows.get(hit.op_index - 1)
        start, end = int(operators.end_ns[before]) if before is not None else start, start
        start = min(start, end)
    return Note(
        track=f"{finding.rule} {finding.name}",
        name=f"{finding.rule} {finding.name}",
        start_ns=start,
        end_ns=end,
        details=(("what", hit.message), *_details(finding)),
        anchors=(anchor,),
    )


def _details(finding: Finding) -> tuple[tuple[str, str], ...]:
    return (
        ("rule", f"{finding.rule} {finding.name}"),
        ("effect", finding.effect),
        ("line", place_text(finding.location) if finding.location is not None else ""),
        ("operator", finding.operator),
        ("fix", finding.fix),
        ("left out by", finding.suppressed.reason if finding.suppressed is not None else ""),
    )


_LOOK_AHEAD = 50  # operators that a profiled step may have and a recorded one not
_ENOUGH = 0.8  # of the recorded operators; with fewer the trace is of something else

Rows = dict[int, int]  # the index of a recorded operator -> its row among the trace's operators


def steps_of(trace: Trace) -> tuple[tuple[int, int], ...]:
    """From when to when each ProfilerStep runs on the host, in ns."""
    spans = trace.annotations.take(trace.named(trace.annotations, is_step_mark))
    return tuple(zip(spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True))


def match_step(ops: Sequence[Op], trace: Trace, step: tuple[int, int]) -> Rows:
    """In order, by name; what only one of the two has is passed over.

    Empty where too few are found for the two to be of the same step.
    """
    wanted = [_traced_name(op) for op in ops]
    rows = _candidates(trace, step, frozenset(wanted))
    names = [trace.names[name] for name in trace.operators.name[rows].tolist()]
    found: Rows = {}
    place = 0
    for op, name in zip(ops, wanted, strict=True):
        reach = names[place : place + _LOOK_AHEAD]
        if name in reach:
            place += reach.index(name)
            found[op.index] = int(rows[place])
            place += 1
    return found if len(found) >= _ENOUGH * len(ops) else {}


def _candidates(trace: Trace, step: tuple[int, int], names: frozenset[str]) -> Ints:
    """The step's operators of these names, less those that lie in one of the same name.

    A mode that hands an operator on lets the profiler see it twice, the second time inside the first.
    """
    operators = trace.operators
    inside = (operators.start_ns >= step[0]) & (operators.start_ns < step[1])
    rows = np.flatnonzero(inside & trace.named(operators, names.__contains__))
    parent, name = nest(operators).parent, operators.name
    again = np.zeros(len(rows), np.bool_)
    above = parent[rows]
    while (above != NONE).any():
        again |= (above != NONE) & (name[above] == name[rows])
        above = np.where(above != NONE, parent[above], NONE)
    return rows[~again]


def _traced_name(op: Op) -> str:
    """ "aten::add" of "aten.add.Tensor": profilers know no overloads."""
    namespace, _, rest = op.name.partition(".")
    return f"{namespace}::{rest.partition('.')[0]}"
