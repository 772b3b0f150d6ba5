"""An explained trace, a folder of traces or two compared -> JSON, by published schemas (docs/trace.schema.json)."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from graphdoctor.reporters.plain_json import described, written
from graphdoctor.values.compared_traces import FolderReport, TraceComparison
from graphdoctor.values.errors import UsageError
from graphdoctor.values.trace import TRACE_SCHEMA_VERSION, TraceReport


def render(report: TraceReport | FolderReport | TraceComparison) -> str:
    """Indented JSON."""
    return written(report)


def parse(content: bytes, *, name: str) -> TraceReport | FolderReport | TraceComparison:
    """What was saved; `name` is what errors call it. Raises UsageError for anything else."""
    try:
        header = msgspec.json.decode(content, type=_Header)
        if header.schema_version != TRACE_SCHEMA_VERSION:
            raise UsageError(
                f"{name} has trace schema version {header.schema_version}, but this graphdoctor reads"
                f" version {TRACE_SCHEMA_VERSION}; run `graphdoctor trace ... --json` again"
            )
        kind: Any = (
            FolderReport if header.workers else TraceComparison if header.before else TraceReport
        )
        plain = msgspec.json.decode(content)
        return cast(
            "TraceReport | FolderReport | TraceComparison",
            msgspec.convert(plain, kind, strict=False),  # as NaN and infinity are written
        )
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not a report of `graphdoctor trace`: {error}") from error


def is_trace(content: bytes) -> bool:
    """Whether this is what `render` wrote, of any of the three kinds; not whether it is complete."""
    try:
        signs = msgspec.json.decode(content, type=_Signs)
    except (msgspec.DecodeError, RecursionError):
        return False  # the reader of reports says what is wrong with it
    return any(bytes(sign) for sign in (signs.step_basis, signs.workers, signs.before))


class _Signs(msgspec.Struct, frozen=True):
    """What tells the three kinds apart, and them from other reports."""

    step_basis: msgspec.Raw = msgspec.Raw()  # one trace
    workers: msgspec.Raw = msgspec.Raw()  # a folder of them
    before: msgspec.Raw = msgspec.Raw()  # two of them


class _Header(_Signs, frozen=True, kw_only=True):
    schema_version: int


def schema() -> dict[str, Any]:
    """The JSON schema of all three: one trace, a folder of them, or two compared."""
    return described(
        TraceReport,
        FolderReport,
        TraceComparison,
        title="graphdoctor trace report",
        written_by="`graphdoctor trace --json` writes: one trace, for a folder all of them,"
        " or two before and after a change",
        version=TRACE_SCHEMA_VERSION,
    )
