"""Applies the user's comments: marks findings as suppressed, and finds comments without use."""

from __future__ import annotations

import ast
import linecache
import os
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from graphdoctor.rules import ALL_RULES
from graphdoctor.source.trees import scope_at
from graphdoctor.values.finding import Finding, IdleComment, Suppression
from graphdoctor.values.host_events import HostEvent
from graphdoctor.values.locations import Location, is_library, own_line
from graphdoctor.values.recording import Iteration, Op, Recording
from graphdoctor.values.spelling import nearest

NO_REASON = "no reason given"
_HOW = "write `# graphdoctor: ignore[GD101] reason`, or `file-ignore[...]` for the whole file"
_HOW_BLOCK = 'write its rules out, as in `with graphdoctor.allowed("GD101", reason="..."):`'
_IDS: Mapping[str, str] = {
    key.lower(): rule.id for rule in ALL_RULES for key in (rule.id, rule.name)
}


@dataclass(frozen=True, slots=True)
class _Said:
    """One rule that a comment names; `rule` is its id, or None where there is no such rule."""

    file: str
    comment: Comment
    name: str
    rule: str | None

    @property
    def location(self) -> Location:
        return Location(self.file, self.comment.line)

    def is_about(self, rule: str, places: Sequence[Location]) -> bool:
        return rule == self.rule and any(
            _same(place.file, self.file) and self.comment.covers(place.line) for place in places
        )


def suppress(
    findings: Sequence[Finding], recording: Recording, *, file: str
) -> tuple[tuple[Finding, ...], tuple[IdleComment, ...]]:
    """Mark what the comments name; `file` is the target's, which findings without a line are in."""
    run = _lines_run(recording)
    said = [one for path in _own_files(run, file) for one in _said_in(path)]
    if not said:
        return tuple(findings), ()
    used: set[_Said] = set()
    marked = tuple(_marked(finding, said, file, used) for finding in findings)
    return marked, tuple(_idle(said, used, run))


def _marked(finding: Finding, said: Sequence[_Said], file: str, used: set[_Said]) -> Finding:
    """A finding in a library is the user's where their own line calls into it."""
    own = own_line((finding.location, *finding.stack))
    places = [place for place in (finding.location, own) if place is not None]
    matching = [one for one in said if one.is_about(finding.rule, places or [Location(file, 0)])]
    if not matching:
        return finding
    nearest = min(matching, key=lambda one: one.comment.is_for_file)
    used.add(nearest)
    reason = nearest.comment.reason or NO_REASON
    return msgspec.structs.replace(finding, suppressed=Suppression(reason, nearest.location))


def _said_in(file: str) -> Iterator[_Said]:
    lines = linecache.getlines(file)
    for comment in (*comments_in(lines), *allowed_in(lines)):
        for name in comment.rules or ("",):
            yield _Said(file, comment, name, _IDS.get(name.lower()))


def _own_files(run: Mapping[str, set[int]], file: str) -> list[str]:
    """The user's files that the step ran in, and the target's, each once."""
    own = (path for path in (file, *run) if not is_library(path))
    return list({os.path.abspath(path): path for path in own}.values())


def _lines_run(recording: Recording) -> dict[str, set[int]]:
    """By file, the lines from which the step called torch, or called what does."""
    places = {
        id(place): place for iteration in recording.captured for place in _places_of(iteration)
    }
    lines: dict[str, set[int]] = {}
    for place in places.values():
        lines.setdefault(place.file, set()).add(place.line)
    return lines


def _places_of(iteration: Iteration) -> Iterator[Location]:
    happened: tuple[Op | HostEvent, ...] = (*iteration.ops, *iteration.events)
    for one in happened:
        if one.location is not None:
            yield one.location
        yield from one.stack


def _idle(
    said: Sequence[_Said], used: set[_Said], run: Mapping[str, set[int]]
) -> Iterator[IdleComment]:
    for one in said:
        comment = one.comment
        if not comment.rules:
            message = (
                f"`{comment.code}` is not understood; {_HOW_BLOCK if comment.is_block else _HOW}"
            )
            yield IdleComment(one.location, "", "not-understood", message)
        elif one.rule is None:
            yield IdleComment(one.location, one.name, "unknown-rule", _unknown(one.name))
        elif not comment.is_for_file and not comment.first:
            message = (
                f"{comment.naming(one.name)} is on no statement; put it at the end of its line"
            )
            yield IdleComment(one.location, one.name, "misplaced", message)
        elif one not in used and _was_run(one, run):
            message = f"{comment.naming(one.name)} suppresses nothing"
            yield IdleComment(one.location, one.name, "unused", message)


def _unknown(name: str) -> str:
    known = (key for rule in ALL_RULES for key in (rule.id, rule.name))
    return f"there is no rule {name!r}; the nearest one is {nearest(name, known)!r}"


def _was_run(one: _Said, run: Mapping[str, set[int]]) -> bool:
    """Whether the step ran the code around a comment: of other code nothing is known."""
    lines = {line for path, found in run.items() if _same(path, one.file) for line in found}
    if one.comment.is_for_file:
        return bool(lines)
    scope = scope_at(one.file, one.comment.first)
    if scope is None or isinstance(scope, ast.Module):
        return bool(lines)
    return any(scope.lineno <= line <= (scope.end_lineno or scope.lineno) for line in lines)


def _same(one: str, other: str) -> bool:
    return one == other or os.path.abspath(one) == os.path.abspath(other)


_NAME = "allowed"
_PACKAGE = "graphdoctor"


def allowed_in(source: Sequence[str]) -> tuple[Comment, ...]:
    """All of them, in order; none of a text that is not Python."""
    if not any(_NAME in line for line in source):
        return ()
    try:
        tree = ast.parse("".join(source))
    except (SyntaxError, ValueError):
        return ()
    names = frozenset(_names(tree))
    blocks = (node for node in ast.walk(tree) if isinstance(node, (ast.With, ast.AsyncWith)))
    found = (one for block in blocks for one in _of_block(block, names))
    return tuple(sorted(found, key=lambda one: one.line))


def _names(tree: ast.Module) -> Iterator[str]:
    """What the file calls it: "graphdoctor.allowed", "gd.allowed", "allowed"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == _PACKAGE:
                    yield f"{alias.asname or alias.name}.{_NAME}"
        elif isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            yield from (alias.asname or _NAME for alias in node.names if alias.name == _NAME)


def _of_block(block: ast.With | ast.AsyncWith, names: frozenset[str]) -> Iterator[Comment]:
    for item in block.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and ast.unparse(call.func) in names:
            assert block.end_lineno is not None
            rules = tuple(text for arg in call.args if (text := _text(arg)))
            reasons = [_text(word.value) for word in call.keywords if word.arg == "reason"]
            is_clear = len(rules) == len(call.args)
            yield Comment(
                line=call.lineno,
                text=ast.unparse(call),
                rules=rules if is_clear else (),
                reason=reasons[0] if reasons else "",
                is_for_file=False,
                first=block.body[0].lineno,
                last=block.end_lineno,
                is_block=True,
            )


def _text(node: ast.expr) -> str:
    """A string that is written out; "" for anything else."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else ""  # type: ignore[attr-defined]


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
