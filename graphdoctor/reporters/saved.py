"""The bytes of saved reports, of whatever command -> their HTML page, or a program's report again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import parsed, top_level
from graphdoctor.values.compared_traces import AnyTrace, FolderReport, TraceComparison
from graphdoctor.values.errors import UsageError
from graphdoctor.values.program import ProgramReport
from graphdoctor.values.trace import TraceReport

_TRACES = {"workers": FolderReport, "before": TraceComparison}  # by a key that only they have
Named = tuple[str, bytes]  # what errors call a file, and its content


def page_of(files: Sequence[Named], look: Look) -> str:
    """Several files are checks of one repository, from the oldest to the newest.

    Raises UsageError, with the reason, for what is no report.
    """
    from graphdoctor.reporters.check.json import is_check

    name, content = files[0]
    if is_check(content):
        return _history(files, look)
    if len(files) > 1:
        raise UsageError(
            f"{name} is no check: several files are shown as the history of one repository's checks,"
            " so name those that `graphdoctor check --report json=FILE` wrote, or one report"
        )
    keys = top_level(content).keys()
    if {"ending", "steps"} <= keys:
        from graphdoctor.reporters import program_html

        return program_html.render(program_report(content, name=name), look)
    if not keys.isdisjoint({"step_basis", *_TRACES}):
        from graphdoctor.reporters import trace_html

        return trace_html.render(_trace_of(content, name=name), look)
    from graphdoctor.reporters.analysis import REPORTERS
    from graphdoctor.reporters.analysis.json import parse

    return REPORTERS["html"](parse(content, name=name), look)


def program_report(content: str | bytes, *, name: str = "the report") -> ProgramReport:
    """What `graphdoctor run` saved; `name` is what errors call it. Raises UsageError."""
    return parsed(content, ProgramReport, name=name)


def _trace_of(content: bytes, *, name: str) -> AnyTrace:
    keys = top_level(content)
    kind: Any = next((kind for key, kind in _TRACES.items() if key in keys), TraceReport)
    found: AnyTrace = parsed(content, kind, name=name)
    return found


def _history(files: Sequence[Named], look: Look) -> str:
    from graphdoctor.reporters.check.html import render_history
    from graphdoctor.reporters.check.json import parse
    from graphdoctor.reporters.web.history import Dated

    dated = [Dated(PurePath(name).stem, parse(content, name=name)) for name, content in files]
    return render_history(dated, look)
