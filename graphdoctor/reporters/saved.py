"""The bytes of saved reports, of whatever command -> their page, in a terminal or in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import parsed
from graphdoctor.values.compared_traces import AnyTrace, FolderReport, TraceComparison
from graphdoctor.values.errors import UsageError
from graphdoctor.values.file_kinds import saved_kind, what_it_is
from graphdoctor.values.program import ProgramReport
from graphdoctor.values.sweep import Sweep
from graphdoctor.values.trace import TraceReport
from graphdoctor.values.watched import WatchReport

_TRACES = {
    "trace": TraceReport,
    "trace folder": FolderReport,
    "trace comparison": TraceComparison,
}
Named = tuple[str, bytes]  # what errors call a file, and its content


def text_of(content: bytes, look: Look, *, name: str) -> str:
    """The page that the command which saved it showed. Raises UsageError, with the reason, for what is no report."""
    kind = _name_of(content)
    if kind == "run":
        from graphdoctor.reporters import program_page

        return program_page.render(program_report(content, name=name), look)
    if kind == "check":
        from graphdoctor.reporters.check import full
        from graphdoctor.reporters.check.json import parse as parse_check

        return full.render(parse_check(content, name=name), look)
    if kind == "sweep":
        from graphdoctor.reporters import sweep_page

        return sweep_page.render(parsed(content, Sweep, name=name), look)
    if kind == "watch":
        from graphdoctor.reporters import watch_page

        return watch_page.render(parsed(content, WatchReport, name=name), look)
    if kind in _TRACES:
        return trace_text(_trace_of(content, kind, name=name), look)
    from graphdoctor.reporters.analysis import REPORTERS
    from graphdoctor.reporters.analysis.json import parse

    return REPORTERS["terminal"](parse(content, name=name), look)


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
    kind = _name_of(content)
    if kind == "run":
        from graphdoctor.reporters import program_html

        return program_html.render(program_report(content, name=name), look)
    if kind in _TRACES:
        from graphdoctor.reporters import trace_html

        return trace_html.render(_trace_of(content, kind, name=name), look)
    if kind in ("sweep", "watch"):
        raise UsageError(f"{what_it_is(content, name=name)}; there is no HTML page of it")
    from graphdoctor.reporters.analysis import REPORTERS
    from graphdoctor.reporters.analysis.json import parse

    return REPORTERS["html"](parse(content, name=name), look)


def program_report(content: str | bytes, *, name: str = "the report") -> ProgramReport:
    """What `graphdoctor run` saved; `name` is what errors call it. Raises UsageError."""
    return parsed(content, ProgramReport, name=name)


def _name_of(content: bytes) -> str:
    kind = saved_kind(content)
    return kind.name if kind is not None else ""


def _trace_of(content: bytes, kind: str, *, name: str) -> AnyTrace:
    wanted: Any = _TRACES[kind]
    found: AnyTrace = parsed(content, wanted, name=name)
    return found


def trace_text(report: AnyTrace, look: Look) -> str:
    """The terminal's page of any kind of explained trace."""
    from graphdoctor.reporters import trace_before_after, trace_folder, trace_page

    if isinstance(report, TraceReport):
        return trace_page.render(report, look)
    if isinstance(report, TraceComparison):
        return trace_before_after.render(report, look)
    return trace_folder.render(report, look)


def _history(files: Sequence[Named], look: Look) -> str:
    from graphdoctor.reporters.check.html import render_history
    from graphdoctor.reporters.check.json import parse
    from graphdoctor.reporters.web.history import Dated

    dated = [Dated(PurePath(name).stem, parse(content, name=name)) for name, content in files]
    return render_history(dated, look)
