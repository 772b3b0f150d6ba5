"""The bytes of saved reports, of whatever command -> their HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from graphdoctor.reporters.look import Look
from graphdoctor.values.errors import UsageError

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
    from graphdoctor.reporters import program_json, trace_json

    if program_json.is_program(content):
        from graphdoctor.reporters import program_html

        return program_html.render(program_json.parse(content, name=name), look)
    if trace_json.is_trace(content):
        from graphdoctor.reporters import trace_html

        return trace_html.render(trace_json.parse(content, name=name), look)
    from graphdoctor.reporters.analysis import REPORTERS
    from graphdoctor.reporters.analysis.json import parse

    return REPORTERS["html"](parse(content, name=name), look)


def _history(files: Sequence[Named], look: Look) -> str:
    from graphdoctor.reporters.check.html import render_history
    from graphdoctor.reporters.check.json import parse
    from graphdoctor.reporters.web.history import Dated

    dated = [Dated(PurePath(name).stem, parse(content, name=name)) for name, content in files]
    return render_history(dated, look)
