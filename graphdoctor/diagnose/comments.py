"""Lines of Python -> the comments in them that tell graphdoctor what to leave out."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_MARK = "graphdoctor:"
_DIRECTIVE = re.compile(r"#\s*graphdoctor:\s*(?P<text>[^#]*)")
_IGNORE = re.compile(r"(?P<scope>file-)?ignore\s*\[(?P<rules>[^\]]*)\][\s:,-]*(?P<reason>.*)")
_NO_STATEMENT = frozenset(
    {tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
)


@dataclass(frozen=True, slots=True)
class Comment:
    """One comment at `line`. `rules` is empty where it was not understood.

    It is about the statement in the lines `first` to `last`, which are 0 where it stands on none.
    A block, `with graphdoctor.allowed(...)`, is about the lines in it.
    """

    line: int
    text: str
    rules: tuple[str, ...]
    reason: str
    is_for_file: bool
    first: int
    last: int
    is_block: bool = False

    @property
    def code(self) -> str:
        """It as it is written."""
        return self.text if self.is_block else f"# graphdoctor: {self.text}"

    def naming(self, rule: str) -> str:
        """The part of it that names a rule."""
        if self.is_block:
            return f'allowed("{rule}")'
        return f"{'file-' * self.is_for_file}ignore[{rule}]"

    def covers(self, line: int) -> bool:
        return self.is_for_file or self.first <= line <= self.last


def comments_in(source: Sequence[str]) -> tuple[Comment, ...]:
    """All of them, in order; none of a text that is not Python."""
    if not any(_MARK in line for line in source):
        return ()
    try:
        return tuple(_comments(source))
    except (tokenize.TokenError, SyntaxError):
        return ()


def _comments(source: Sequence[str]) -> Iterator[Comment]:
    """Python's own tokens tell where a logical line begins and ends, brackets included."""
    first = 0
    waiting: list[tokenize.TokenInfo] = []
    lines = iter(source)
    for token in tokenize.generate_tokens(lambda: next(lines, "")):
        if token.type == tokenize.COMMENT and _DIRECTIVE.search(token.string):
            if first:
                waiting.append(token)
            else:
                yield _comment(token, 0, 0)
        elif token.type == tokenize.NEWLINE:
            for comment in waiting:
                yield _comment(comment, first, token.start[0])
            first, waiting = 0, []
        elif not first and token.type not in _NO_STATEMENT:
            first = token.start[0]


def _comment(token: tokenize.TokenInfo, first: int, last: int) -> Comment:
    found = _DIRECTIVE.search(token.string)
    assert found is not None
    text = found["text"].strip()
    ignore = _IGNORE.fullmatch(text)
    if ignore is None:
        return Comment(token.start[0], text, (), "", False, first, last)
    rules = tuple(name for part in ignore["rules"].split(",") if (name := part.strip()))
    reason = ignore["reason"].strip()
    is_for_file = ignore["scope"] is not None
    return Comment(token.start[0], text, rules, reason, is_for_file, first, last)
