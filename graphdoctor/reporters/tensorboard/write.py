"""A report, its evidence and the profiled runs -> their folders filled, and the report with the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from graphdoctor.measure.speed import EAGER
from graphdoctor.reporters.tensorboard.notes import notes_of
from graphdoctor.reporters.tensorboard.overview import page_of
from graphdoctor.reporters.tensorboard.scalars import Scalar, scalars_of
from graphdoctor.strategies.evidence import Evidence
from graphdoctor.trace import Trace
from graphdoctor.trace.annotate import annotate
from graphdoctor.trace.read.names import KeptTrace
from graphdoctor.values.errors import CannotDoItHere, GraphDoctorError
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
                _annotate(kept, run.profile.trace, report, evidence)
                files.append(str(kept.annotated))
            page = page_of(report, evidence.speed.runs) if run.name == EAGER else None
            _write_events(kept.folder, number, scalars_of(run, report), page)
        except (GraphDoctorError, OSError) as error:
            limits.append(str(error))
    return msgspec.structs.replace(
        report,
        trace_files=(*report.trace_files, *files),
        limits=tuple(dict.fromkeys((*report.limits, *limits))),
    )


def _annotate(kept: KeptTrace, trace: Trace, report: Report, evidence: Evidence) -> None:
    # The profiled steps ran on the inputs of the first iteration, from the same state.
    iteration = evidence.recording.captured[0]
    notes = notes_of(report.findings, evidence.diagnosis, evidence.plan, iteration, trace)
    annotate(kept.untouched, kept.annotated, notes, trace.threads)


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
    writer = _writer(folder)
    try:
        for tag, value in scalars:
            writer.add_scalar(tag, value, number)
        if page is not None:
            writer.add_text(PAGE_TAG, page, number)
    finally:
        writer.close()


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise CannotDoItHere(
            "TensorBoard cannot be imported, so the trace folder has traces only, without figures and"
            f" text: pip install 'graphdoctor[tensorboard]' ({error})."
        ) from error
    return SummaryWriter(log_dir=str(folder))
