"""The bytes of a saved report, of whatever command -> its HTML page."""

from __future__ import annotations

import msgspec

from graphdoctor.reporters.look import Look


class _Signs(msgspec.Struct, frozen=True):
    """Fields that only one kind of report has; all of them optional here."""

    step_basis: msgspec.Raw = msgspec.Raw()  # a trace
    workers: msgspec.Raw = msgspec.Raw()  # a folder of traces
    before: msgspec.Raw = msgspec.Raw()  # two traces


def page_of(content: bytes, *, name: str, look: Look) -> str:
    """`name` is what errors call the file. Raises UsageError, with the reason, for what is no report."""
    if _is_trace(content):
        from graphdoctor.reporters import trace_html, trace_json

        return trace_html.render(trace_json.parse(content, name=name), look)
    from graphdoctor.reporters.analysis import REPORTERS
    from graphdoctor.reporters.analysis.json import parse

    return REPORTERS["html"](parse(content, name=name), look)


def _is_trace(content: bytes) -> bool:
    try:
        signs = msgspec.json.decode(content, type=_Signs)
    except (msgspec.DecodeError, RecursionError):
        return False  # the reader of reports says what is wrong with it
    return any(bytes(sign) for sign in (signs.step_basis, signs.workers, signs.before))
