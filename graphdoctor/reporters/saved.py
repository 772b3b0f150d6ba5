"""The bytes of saved reports, of whatever command -> their HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import msgspec

from graphdoctor.reporters.look import Look
from graphdoctor.values.errors import UsageError

Named = tuple[str, bytes]  # what errors call a file, and its content


class _Signs(msgspec.Struct, frozen=True):
    """Fields that only one kind of report has; all of them optional here."""

    step_basis: msgspec.Raw = msgspec.Raw()  # a trace
    workers: msgspec.Raw = msgspec.Raw()  # a folder of traces
    before: msgspec.Raw = msgspec.Raw()  # two traces


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
    if _is_trace(content):
        from graphdoctor.reporters import trace_html, trace_json

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


def _is_trace(content: bytes) -> bool:
    try:
        signs = msgspec.json.decode(content, type=_Signs)
    except (msgspec.DecodeError, RecursionError):
        return False  # the reader of reports says what is wrong with it
    return any(bytes(sign) for sign in (signs.step_basis, signs.workers, signs.before))
