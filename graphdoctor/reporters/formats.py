"""Every format that a report can be written in: what the command line offers, and which module writes it.

`--help` reads this list, so nothing else is imported before something is written.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

if TYPE_CHECKING:
    from graphdoctor.reporters.look import Look
    from graphdoctor.values.audited import AuditReport
    from graphdoctor.values.check import Changes, Check
    from graphdoctor.values.program import ProgramReport
    from graphdoctor.values.report import Report
    from graphdoctor.values.sweep import Sweep
    from graphdoctor.values.trace import AnyTrace
    from graphdoctor.values.watched import WatchReport

    Shown = Report | ProgramReport | Check | Changes | Sweep | WatchReport | AuditReport | AnyTrace

# The names of the classes in graphdoctor/values/.
Kind = Literal[
    "Report",
    "ProgramReport",
    "Check",
    "Changes",
    "Sweep",
    "WatchReport",
    "AuditReport",
    "TraceReport",
    "FolderReport",
    "TraceComparison",
]


class Format(NamedTuple):
    """A format as options name it, and which kinds of report it shows.

    `module` is below graphdoctor/reporters/ and has the function, `(value, look) -> str`.
    """

    name: str
    kinds: tuple[Kind, ...]
    module: str
    function: str = "render"


_TRACES: tuple[Kind, ...] = ("TraceReport", "FolderReport", "TraceComparison")

# Help and errors name the formats of a kind in this order. The first one is the terminal's page.
FORMATS = (
    Format("terminal", ("Report",), "analysis.terminal"),
    Format("terminal", ("ProgramReport",), "program_page"),
    Format("terminal", ("Sweep",), "sweep_page"),
    Format("terminal", ("WatchReport",), "watch_page"),
    Format("terminal", ("AuditReport",), "audit", "terminal"),
    Format("terminal", ("TraceReport",), "trace_page"),
    Format("terminal", ("FolderReport",), "traces_page", "folder_page"),
    Format("terminal", ("TraceComparison",), "traces_page", "comparison_page"),
    Format("full", ("Check",), "check.full"),
    Format("full", ("Changes",), "changes", "page"),
    Format("concise", ("Check",), "check.full", "concise"),
    Format("json", ("Check",), "plain_json", "check"),
    Format(
        "json",
        ("Report", "ProgramReport", "Sweep", "WatchReport", "AuditReport", *_TRACES),
        "plain_json",
    ),
    Format("sarif", ("Check",), "check.sarif"),
    Format("sarif", ("AuditReport",), "audit", "sarif"),
    Format("github", ("Check",), "check.github"),
    Format("github", ("AuditReport",), "audit", "github"),
    Format("gitlab", ("Check",), "check.gitlab"),
    Format("gitlab", ("AuditReport",), "audit", "gitlab"),
    Format("junit", ("Check",), "check.junit"),
    Format("junit", ("AuditReport",), "audit", "junit"),
    Format("markdown", ("Check",), "check.markdown"),
    Format("markdown", ("Changes",), "changes", "markdown"),
    Format("markdown", ("AuditReport",), "audit", "markdown"),
    Format("html", ("Report",), "analysis.html"),
    Format("html", ("ProgramReport",), "analysis.html", "render_program"),
    Format("html", ("Check",), "check.html"),
    Format("html", ("AuditReport",), "audit", "html"),
    Format("html", _TRACES, "trace_html"),
)


def names_of(kind: Kind) -> tuple[str, ...]:
    """The formats of a kind of report, the terminal's page first."""
    return tuple(one.name for one in FORMATS if kind in one.kinds)


def kind_of(shown: type[Shown]) -> Kind:
    """The kind of a class of reports."""
    return cast(Kind, shown.__name__)


def written_as(name: str, value: Shown, look: Look) -> str:
    """The text of a report in a format of its kind."""
    kind = kind_of(type(value))
    found = next(one for one in FORMATS if one.name == name and kind in one.kinds)
    module = importlib.import_module(f"graphdoctor.reporters.{found.module}")
    text: str = getattr(module, found.function)(value, look)
    return text


def page_of(value: Shown, look: Look) -> str:
    """The page that a terminal shows."""
    return written_as(names_of(kind_of(type(value)))[0], value, look)
