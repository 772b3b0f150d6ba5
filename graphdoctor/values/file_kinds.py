"""Tells from the bytes of a file which command of graphdoctor wrote it, and what reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from graphdoctor.values.errors import UsageError

if TYPE_CHECKING:
    import msgspec


class SavedKind(NamedTuple):
    """A kind of file: what errors call it, and what is done with it, as a clause."""

    name: str
    what: str
    use: str


_SHOWN = "`graphdoctor report {0}` shows it"
_SUFFIXES = (".json", ".gz", ".sarif")
_VIEWED = "`graphdoctor report {0}` and `graphdoctor view {0}` show it"

# Some keys that only they have. A report comes last, since the others have several of its keys.
_KINDS: tuple[tuple[frozenset[str], SavedKind], ...] = (
    (frozenset({"kind"}),
     SavedKind("check", "what `graphdoctor check` saved", _VIEWED)),
    (frozenset({"ending", "steps"}), SavedKind("run", "what `graphdoctor run` saved", _VIEWED)),
    (frozenset({"rows", "end", "tool_version"}),
     SavedKind("sweep", "what `graphdoctor sweep` saved", _SHOWN)),
    (frozenset({"allocator", "waits"}),
     SavedKind("watch", "what `graphdoctor watch` saved", _SHOWN)),
    (frozenset({"audited_graphs", "stale_tensors"}),
     SavedKind("audit", "what `graphdoctor audit` saved", _SHOWN)),
    *((frozenset({key, "tool_version"}),
       SavedKind(name, "what `graphdoctor trace` saved", _VIEWED))
      for key, name in (("step_basis", "trace"), ("workers", "trace folder"), ("before", "trace comparison"))),
    (frozenset({"verdict", "findings", "target"}),
     SavedKind("report", "what `graphdoctor analyze` saved", _VIEWED)),
    (frozenset({"version", "findings", "targets"}),
     SavedKind("baseline", "a baseline", "`graphdoctor check` reads it, as `baseline` of the settings names it")),
    (frozenset({"runs", "$schema"}),
     SavedKind("SARIF", "SARIF, for viewers of code scanning",
               "`graphdoctor check --report json=FILE` writes what graphdoctor reads")),
    (frozenset({"traceEvents"}),
     SavedKind("profile", "a profiler trace", "`graphdoctor trace {0}` explains it")),
)  # fmt: skip


def saved_kind(content: bytes | str) -> SavedKind | None:
    """What graphdoctor, or a profiler, saved there; None for anything else, or what is damaged."""
    found = top_level(content).keys()
    return next((kind for keys, kind in _KINDS if keys <= found), None)


def what_it_is(content: bytes | str, *, name: str, wanted: str = "") -> str:
    """A sentence on a file that is not the `wanted` kind, or "" where nothing is known of it."""
    start = content[:2]
    if start in (b"\x1f\x8b", "\x1f\x8b"):
        return f"{name} is packed, as traces are: `graphdoctor trace {name}` explains one"
    kind = saved_kind(content)
    if kind is None or kind.name.partition(" ")[0] == wanted:  # a trace's folder is a trace, too
        return ""
    return f"{name} is {kind.what}: {kind.use.format(name)}"


def refuse_saved(path: Path) -> None:
    """Raise UsageError if a file that is to be something else is what a command saved."""
    try:
        content = path.read_bytes() if path.suffix in _SUFFIXES else b""
    except OSError:
        return  # who reads it says so
    if said := what_it_is(content, name=str(path)):
        raise UsageError(said)


def top_level(content: bytes | str) -> Mapping[str, msgspec.Raw]:
    """The keys of a saved value, which tell kinds apart, even where the rest is broken."""
    import msgspec  # not at the top: the command line's parser knows this module, and --help is quick

    try:
        return msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}  # the reader of reports says what is wrong with it
