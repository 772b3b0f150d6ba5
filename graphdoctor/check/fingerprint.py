"""The key by which a baseline knows a finding: rule, path and the code of its line, without a line number."""

from __future__ import annotations

import hashlib
import io
import linecache
import tokenize
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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
