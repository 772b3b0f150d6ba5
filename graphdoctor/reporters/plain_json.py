"""Values <-> JSON text that any reader takes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import msgspec

from graphdoctor.reporters.look import Look
from graphdoctor.values.audited import AUDIT_SCHEMA_VERSION, AuditReport
from graphdoctor.values.check import CHECK_SCHEMA_VERSION, Check
from graphdoctor.values.errors import UsageError
from graphdoctor.values.file_kinds import what_it_is
from graphdoctor.values.program import PROGRAM_SCHEMA_VERSION, ProgramReport
from graphdoctor.values.report import SCHEMA_VERSION, Report
from graphdoctor.values.sweep import SWEEP_SCHEMA_VERSION, Sweep
from graphdoctor.values.trace import (
    TRACE_SCHEMA_VERSION,
    FolderReport,
    TraceComparison,
    TraceReport,
)
from graphdoctor.values.watched import WATCH_SCHEMA_VERSION, WatchReport

_T = TypeVar("_T")
_SHOWN = 30  # characters of a file that is something else


class _Kind(NamedTuple):
    """What errors call a kind of saved value, the version that is read, and the command that writes it."""

    what: str
    version: int
    command: str


_TRACE = _Kind("trace", TRACE_SCHEMA_VERSION, "graphdoctor trace ... --json")
_KINDS: dict[type, _Kind] = {
    Report: _Kind("report", SCHEMA_VERSION, "graphdoctor analyze ... --json"),
    ProgramReport: _Kind("run", PROGRAM_SCHEMA_VERSION, "graphdoctor run"),
    Check: _Kind("check", CHECK_SCHEMA_VERSION, "graphdoctor check --output-format json"),
    TraceReport: _TRACE,
    FolderReport: _TRACE,
    TraceComparison: _TRACE,
    Sweep: _Kind("sweep", SWEEP_SCHEMA_VERSION, "graphdoctor sweep ... --json"),
    WatchReport: _Kind("watch", WATCH_SCHEMA_VERSION, "graphdoctor watch --json"),
    AuditReport: _Kind("audit", AUDIT_SCHEMA_VERSION, "graphdoctor audit --json"),
}

# JSON has no such numbers; a NaN in a model's output must survive saving all the same.
NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def render(value: Any, look: Look) -> str:
    """The JSON of any report but a check."""
    return written(value)


def check(value: Check, look: Look) -> str:
    """The JSON of a check, without times: the same commit gives the same bytes."""
    table = msgspec.to_builtins(value)
    for target in table["targets"]:
        del target["analysis_s"]
    return written(table)


def written(value: Any) -> str:
    """Indented JSON; any text and any number of the value can be written and read again."""
    encoded = msgspec.json.encode(writable(msgspec.to_builtins(value)))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def parsed(content: str | bytes, kind: type[_T], *, name: str) -> _T:
    """A value that was `written`; `name` is what errors call it. Raises UsageError for anything else."""
    what, version, command = _KINDS[kind]
    again = f"run `{command}` again"
    try:
        plain = msgspec.json.decode(content)
        found = plain.get("schema_version") if _may_be(plain, kind) else None
        if type(found) is int and found > version:
            raise UsageError(
                f"{name} has {what} schema version {found}, newer than version {version} that this"
                " graphdoctor reads; upgrade graphdoctor"
            )
        if type(found) is int and found < version:
            raise UsageError(
                f"{name} has {what} schema version {found}, but this graphdoctor reads version"
                f" {version}; {again}"
            )
        return msgspec.convert(plain, kind, strict=False)  # as NaN and infinity are written
    except msgspec.ValidationError as error:
        known = what_it_is(content, name=name, wanted=what)
        raise UsageError(known or f"{name} is not a graphdoctor {what}: {error}") from error
    except msgspec.DecodeError as error:
        if "truncated" in str(error) or str(error).endswith(f"(byte {len(content)})"):
            reason = "is cut short" if content.strip() else "is empty"
            raise UsageError(f"{name} {reason}; {again}") from error
        known = what_it_is(content, name=name)
        raise UsageError(known or _no_json(content, name=name, written_by=command)) from error
    except RecursionError as error:
        raise UsageError(f"{name} is not a graphdoctor {what}: it is nested too deeply") from error


def _no_json(content: str | bytes, *, name: str, written_by: str) -> str:
    if name.endswith(".toml"):
        return f"{name} is TOML, as hosts and settings are: `--host {name}` or `--config {name}` takes it"
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    start = text[:_SHOWN].partition("\n")[0]
    found = (
        f"it begins with {start!r}"
        if start.isprintable() and "\ufffd" not in start
        else "it is no text"
    )
    return f"{name} is not JSON, which `{written_by}` and others save: {found}"


def _may_be(plain: Any, kind: type) -> bool:
    """Whether it may be another version of this kind: most keys of what another command saved are foreign."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    return isinstance(plain, dict) and 2 * len(plain.keys() - known) <= len(plain)


def writable(value: Any) -> Any:
    """The same plain value with everything that JSON cannot hold written as text."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return NOT_FINITE[str(value)]
    if isinstance(value, dict):
        return {writable(key): writable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [writable(item) for item in value]
    return value
