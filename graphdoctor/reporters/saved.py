"""The page of any saved report, whatever command saved it, for a terminal or in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from graphdoctor.reporters import formats
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import parsed
from graphdoctor.values.audited import AuditReport
from graphdoctor.values.check import Check
from graphdoctor.values.errors import UsageError
from graphdoctor.values.file_kinds import saved_kind, what_it_is
from graphdoctor.values.program import ProgramReport
from graphdoctor.values.report import Report
from graphdoctor.values.sweep import Sweep
from graphdoctor.values.trace import FolderReport, TraceComparison, TraceReport
from graphdoctor.values.watched import WatchReport

# By the names in graphdoctor/values/file_kinds.py. Anything else is read as a report, and refused as one.
_TYPES: dict[str, type[formats.Shown]] = {
    "report": Report,
    "run": ProgramReport,
    "check": Check,
    "sweep": Sweep,
    "watch": WatchReport,
    "audit": AuditReport,
    "trace": TraceReport,
    "trace folder": FolderReport,
    "trace comparison": TraceComparison,
}
Named = tuple[str, bytes]  # what errors call a file, and its content


def text_of(content: bytes, look: Look, *, name: str) -> str:
    """The page that the command showed when it saved the report.

    Raises UsageError, with the reason, for anything but a report.
    """
    return formats.page_of(parsed(content, _type_of(content), name=name), look)


def page_of(files: Sequence[Named], look: Look) -> str:
    """The HTML page. Several files are checks of one repository, from the oldest to the newest.

    Raises UsageError, with the reason, for anything but a report that has an HTML page.
    """
    name, content = files[0]
    shown = _type_of(content)
    if shown is Check:
        from graphdoctor.reporters.check.html import Dated, render_history

        checks = [
            (PurePath(name).stem, parsed(content, Check, name=name)) for name, content in files
        ]
        return render_history([Dated(*check) for check in checks], look)
    if len(files) > 1:
        raise UsageError(
            f"{name} is no check: several files are shown as the history of one repository's checks,"
            " so name those that `graphdoctor check --report json=FILE` wrote, or one report"
        )
    if "html" not in formats.names_of(formats.kind_of(shown)):
        raise UsageError(f"{what_it_is(content, name=name)}; there is no HTML page of it")
    return formats.written_as("html", parsed(content, shown, name=name), look)


def _type_of(content: bytes) -> type[formats.Shown]:
    kind = saved_kind(content)
    return _TYPES.get(kind.name if kind is not None else "", Report)
