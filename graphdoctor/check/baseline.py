"""The baseline of a project: accepted findings and figures, in a sorted file with one entry per line."""

from __future__ import annotations

import hashlib
import io
import json
import linecache
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from graphdoctor.values.check import Figures, StaleEntry
from graphdoctor.values.errors import UsageError
from graphdoctor.values.escape import visible
from graphdoctor.values.finding import Finding

_DIGITS = 32


class Key(NamedTuple):
    """`ordinal` tells equal lines of one file apart; it counts from 1 in the order of the lines."""

    path: str
    rule: str
    source: str
    ordinal: int = 1

    @property
    def fingerprint(self) -> str:
        """A hexadecimal digest; equal keys have equal ones on every machine."""
        text = "\0".join((self.rule, self.path, self.source, str(self.ordinal)))
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGITS]


def keys_of(findings: Sequence[Finding], *, root: Path, otherwise: str) -> list[Key]:
    """A key for each finding of one target; `otherwise` is the path of one that has no line."""
    bare = [_bare(finding, root, otherwise) for finding in findings]
    lines = [finding.location.line if finding.location else 0 for finding in findings]
    keys = [*bare]
    seen: dict[Key, int] = {}
    for index in sorted(range(len(bare)), key=lambda index: (bare[index], lines[index], index)):
        seen[bare[index]] = seen.get(bare[index], 0) + 1
        keys[index] = bare[index]._replace(ordinal=seen[bare[index]])
    return keys


def normalised(line: str) -> str:
    """The code of a line: without indentation, comment and the width of its blanks."""
    code = line.strip()
    with suppress(tokenize.TokenError, SyntaxError):  # a line may be half a statement
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                code = code[: token.start[1]]
                break
    return visible(" ".join(code.split()))


def _bare(finding: Finding, root: Path, otherwise: str) -> Key:
    if finding.location is None:
        what = (finding.name, finding.module, finding.operator)
        return Key(otherwise, finding.rule, visible(" ".join(filter(None, what))))
    path = visible(finding.location.file)
    code = finding.code
    if code is None:
        code = linecache.getline(str(root / finding.location.file), finding.location.line)
    return Key(path, finding.rule, normalised(code))


BASELINE_VERSION = 1
FILE_NAME = ".graphdoctor-baseline.json"
_CONFLICT_MARKS = ("<<<<<<< ", ">>>>>>> ", "||||||| ")
_AGAIN = "run `graphdoctor baseline` to write it again"
# Every entry's line ends in a comma, so that git merges lines and never half an array.
_LAST = "null"


class Entry(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """An accepted finding of one target."""

    path: str
    rule: str
    source: str
    target: str
    ordinal: int = 1

    @property
    def stale(self) -> StaleEntry:
        return StaleEntry(self.path, self.rule, self.source, self.target)


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The accepted structure of one target, and the torch, without its build, it was seen with."""

    target: str
    syncs: int
    launches: int
    graphs: int
    coverage: float
    verdict: str
    device: str = (
        "emulated"  # a GPU's figures come from a trace, and are compared with a GPU's only
    )
    torch: str = ""

    @property
    def figures(self) -> Figures:
        return Figures(self.syncs, self.launches, self.graphs, self.coverage)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    findings: tuple[Entry | None, ...]
    targets: tuple[Accepted | None, ...]


class _Header(msgspec.Struct, frozen=True):
    version: int


class Baseline(msgspec.Struct, frozen=True):
    """What is accepted. An empty one accepts nothing."""

    entries: frozenset[Entry] = frozenset()
    targets: Mapping[str, Accepted] = MappingProxyType({})

    def has(self, target: str, key: Key) -> bool:
        return Entry(key.path, key.rule, key.source, target, key.ordinal) in self.entries

    def figures_of(self, target: str, *, device: str) -> Accepted | None:
        """The accepted structure of a target, if it was seen on that kind of device."""
        accepted = self.targets.get(target)
        return accepted if accepted is not None and accepted.device == device else None

    def names(self) -> frozenset[str]:
        """Every target that it knows."""
        return frozenset(self.targets) | {entry.target for entry in self.entries}


def make(entries: Iterable[Entry], targets: Iterable[Accepted]) -> Baseline:
    """A baseline of these; of two figures of one target the later counts."""
    return Baseline(
        frozenset(entries), MappingProxyType({target.target: target for target in targets})
    )


def read(path: Path) -> Baseline:
    """The file's content; a missing file accepts nothing. Raises UsageError for anything else."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Baseline()
    except OSError as error:
        raise UsageError(f"cannot read the baseline {path}: {error.strerror or error}") from error
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        if line.startswith(_CONFLICT_MARKS):
            raise UsageError(
                f"the baseline {path} has merge-conflict markers (line {number}): keep the lines of"
                " both sides and remove the markers, then run `graphdoctor baseline --prune`"
            )
    try:
        version = msgspec.json.decode(content, type=_Header).version
        if version > BASELINE_VERSION:
            raise UsageError(
                f"the baseline {path} has version {version}, newer than version {BASELINE_VERSION} that"
                " this graphdoctor reads; upgrade graphdoctor"
            )
        if version < BASELINE_VERSION:
            raise UsageError(f"the baseline {path} has an unknown version {version}; {_AGAIN}")
        file = msgspec.json.decode(content, type=_File)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is not a baseline of graphdoctor: {error}; {_AGAIN}") from error
    return make(filter(None, file.findings), filter(None, file.targets))


def render(baseline: Baseline) -> str:
    """The text of the file; equal baselines give equal texts."""
    findings = [_line(_entry_fields(entry)) for entry in sorted(baseline.entries)]
    targets = [
        _line(msgspec.to_builtins(baseline.targets[name])) for name in sorted(baseline.targets)
    ]
    return "\n".join(
        (
            "{",
            f'"version": {BASELINE_VERSION},',
            '"findings": [',
            *findings,
            _LAST,
            "],",
            '"targets": [',
            *targets,
            _LAST,
            "]",
            "}",
            "",
        )
    )


def _entry_fields(entry: Entry) -> dict[str, object]:
    """In the order of the sorting; the ordinal only where there are several equal lines."""
    fields: dict[str, object] = {
        "path": entry.path, "rule": entry.rule, "source": entry.source, "target": entry.target,
    }  # fmt: skip
    return fields if entry.ordinal == 1 else fields | {"ordinal": entry.ordinal}


def _line(fields: Mapping[str, object]) -> str:
    text = json.dumps(fields, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode() + ","
