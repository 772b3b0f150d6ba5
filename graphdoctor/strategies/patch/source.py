"""Changes the text of files by statements, and writes a unified diff that patch and git apply."""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from pathlib import Path

import libcst as cst
from libcst.metadata import CodePosition, MetadataWrapper, PositionProvider

Sources = dict[str, tuple[str, str]]  # by file: its text, and the text that it is to have

# A part of a line of code: line, first and last column in bytes, and the text to have there.
Place = tuple[int, int, int, str]

_Statement = cst.BaseStatement
_Block = cst.Module | cst.IndentedBlock
_SEMICOLON = cst.Semicolon(whitespace_after=cst.SimpleWhitespace(" "))


class CannotEdit(Exception):
    """The file cannot be changed; the text is the reason, as a sentence."""


@dataclass(frozen=True, slots=True)
class At:
    """Where a statement or a call is in a file: lines count from 1, columns in bytes from 0, as in `ast`."""

    file: str
    line: int
    column: int

    @staticmethod
    def start_of(node: ast.stmt | ast.expr, file: str) -> At:
        return At(file, node.lineno, node.col_offset)

    @staticmethod
    def end_of(node: ast.expr, file: str) -> At:
        return At(file, node.end_lineno or 0, node.end_col_offset or 0)


@dataclass(frozen=True, slots=True)
class Above:
    """Code above the statement that begins there, in the same block."""

    at: At
    code: str


@dataclass(frozen=True, slots=True)
class Below:
    """Code below the statement that begins there, in the same block."""

    at: At
    code: str


@dataclass(frozen=True, slots=True)
class Instead:
    """Code in the place of the statements of one block that begin at `at`, at `last` and between them."""

    at: At
    last: At
    code: str


@dataclass(frozen=True, slots=True)
class Text:
    """Code that replaces the expression, or else the statement, that begins at `at` and ends at `end`."""

    at: At
    end: At
    code: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One more argument for the call that *ends* there."""

    at: At
    code: str


@dataclass(frozen=True, slots=True)
class Callee:
    """Another function or class for the call that *ends* there."""

    at: At
    code: str


@dataclass(frozen=True, slots=True)
class Decorator:
    """A decorator for the function that begins there, above those that it has."""

    at: At
    code: str


@dataclass(frozen=True, slots=True)
class Import:
    """An import statement below the first imports of a file, if the file has no such statement yet."""

    file: str
    code: str


Change = Above | Below | Instead | Text | Argument | Callee | Decorator | Import


def changed_sources(changes: Iterable[Change]) -> Sources:
    """Return the text of each file, and its text with all changes. Raises CannotEdit."""
    by_file: dict[str, list[Change]] = {}
    for each in dict.fromkeys(changes):
        by_file.setdefault(each.file if isinstance(each, Import) else each.at.file, []).append(each)
    made = {}
    for file, own in by_file.items():
        text = source_of(file)
        made[file] = text, _changed(os.path.basename(file), text, own)
    return made


def import_of_torch(file: str) -> tuple[Import, ...]:
    """The import that code with the name `torch` needs in a file; none if the file has it. Raises CannotEdit."""
    statements = ast.parse(source_of(file)).body
    names = (alias for n in statements if isinstance(n, ast.Import) for alias in n.names)
    bound = {each.asname or each.name.partition(".")[0] for each in names}
    return () if "torch" in bound else (Import(file, "import torch"),)


def with_places(code: str, places: Iterable[Place]) -> str:
    """Code with other text in parts of its lines."""
    lines = [line.encode() for line in code.split("\n")]
    for line, start, end, text in sorted(places, reverse=True):
        lines[line - 1] = lines[line - 1][:start] + text.encode() + lines[line - 1][end:]
    return b"\n".join(lines).decode()


def source_of(file: str) -> str:
    """The text of a file with the line endings that it has. Raises CannotEdit."""
    name = os.path.basename(file)
    try:
        content = Path(file).read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode("utf-8")
    except (OSError, SyntaxError, ValueError):
        raise CannotEdit(f"{name} cannot be read as UTF-8.") from None
    if encoding != "utf-8" or "\r" in text.replace("\r\n", "") or "\f" in text:
        raise CannotEdit(f"{name} has an encoding, line endings or form feeds that would change.")
    return text


def top_statement(file: str, text: str, line: int) -> At:
    """Where the statement of a file's top level begins that holds a line."""
    body = ast.parse(text).body
    found = next(s for s in body if s.lineno <= line <= (s.end_lineno or s.lineno))
    return At.start_of(found, file)


def unified(sources: Sources, folder: str) -> str:
    """One diff of all files, with their paths relative to a folder that holds them."""
    return "".join(
        (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
        for file, (before, after) in sorted(sources.items())
        for line in _of_file(os.path.relpath(file, folder), before, after)
    )


def at_lines_before(sentence: str, sources: Sources) -> str:
    """With the lines of the files before the change: "train.py:42" is line 41 if an import was added above."""
    for file, (before, after) in sources.items():
        name = os.path.basename(file)
        places = re.compile(rf"(?<![\w.]){re.escape(name)}:(\d+)")
        for found in reversed([*places.finditer(sentence)]):
            line = _line_before(int(found[1]), before, after)
            where = f"{name}:{line}" if line else f"line {found[1]} of the changed {name}"
            sentence = f"{sentence[: found.start()]}{where}{sentence[found.end() :]}"
    return sentence


def _line_before(line: int, before: str, after: str) -> int:
    """The line that has the same text before the change, also if it was moved; 0 if none has."""
    old, new = ([row.strip() for row in text.splitlines()] for text in (before, after))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.b < line <= block.b + block.size:
            return block.a + line - block.b
    text = new[line - 1] if line <= len(new) else ""
    return old.index(text) + 1 if old.count(text) == 1 else 0


def folder_for(files: Iterable[str], base: str) -> str:
    """The folder to apply a diff in: `base`, or one around all files where one is outside it."""
    each = list(files)
    inside = all(os.path.commonpath([base, file]) == base for file in each)
    return base if inside else os.path.commonpath([os.path.dirname(file) for file in each])


def _changed(name: str, text: str, changes: Sequence[Change]) -> str:
    try:
        tree = cst.parse_module(text)
        editor = _Editor(MetadataWrapper(tree, unsafe_skip_copy=True), text)
        for change in changes:
            if not editor.plan(change):
                raise CannotEdit(f"{name} has no single statement at {_place(change)}.")
        changed = editor.result().code
        cst.parse_module(changed)
    except cst.ParserSyntaxError as error:
        raise CannotEdit(f"{name} would be no Python: {error.message}") from None
    return changed


def _place(change: Change) -> str:
    return "its beginning" if isinstance(change, Import) else f"line {change.at.line}"


@dataclass
class _Planned:
    """What happens at one statement; `instead` None leaves it as it is."""

    above: list[_Statement] = field(default_factory=list)
    below: list[_Statement] = field(default_factory=list)
    instead: list[_Statement] | None = None


_Index = tuple[
    int, int
]  # of a statement in its block, and in its line where semicolons part several


class _NoBlanks(cst.CSTTransformer):
    """Empty lines stay without blanks where code is indented."""

    def leave_EmptyLine(
        self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine
    ) -> cst.EmptyLine:
        return updated_node.with_changes(indent=updated_node.comment is not None)


class _Editor(cst.CSTTransformer):
    """Applies planned changes in one pass, so that all of them name places in the unchanged file."""

    def __init__(self, wrapper: MetadataWrapper, text: str) -> None:
        super().__init__()
        self._module = wrapper.module
        self._lines = text.split("\n")
        self._imports: list[_Statement] = []
        self._arguments: dict[cst.CSTNode, list[cst.Arg]] = {}
        self._callees: dict[cst.CSTNode, cst.BaseExpression] = {}
        self._decorators: dict[cst.CSTNode, list[cst.Decorator]] = {}
        self._planned: dict[cst.CSTNode, dict[_Index, _Planned]] = {}
        self._statements: dict[tuple[int, int], tuple[_Block, _Index, cst.CSTNode]] = {}
        self._calls: dict[tuple[int, int], cst.Call] = {}
        self._expressions: dict[tuple[int, ...], cst.BaseExpression] = {}
        self._texts: dict[cst.CSTNode, cst.BaseExpression] = {}
        for node, at in wrapper.resolve(PositionProvider).items():
            if isinstance(node, cst.BaseExpression):
                where = *self._in_bytes(at.start), *self._in_bytes(at.end)
                self._expressions[where] = node
            if isinstance(node, cst.Call):
                self._calls[self._in_bytes(at.end)] = node
            elif isinstance(node, (cst.Module, cst.IndentedBlock)):
                self._note_statements(node, wrapper)

    def _note_statements(self, block: _Block, wrapper: MetadataWrapper) -> None:
        at = wrapper.resolve(PositionProvider)
        for index, statement in enumerate(block.body):
            parts = (
                statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]
            )
            for number, part in enumerate(parts):
                where = self._in_bytes(at[part].start)
                self._statements[where] = block, (index, number), part

    def _in_bytes(self, at: CodePosition) -> tuple[int, int]:
        return at.line, len(self._lines[at.line - 1][: at.column].encode())

    def plan(self, change: Change) -> bool:
        """Whether there is what the change is about."""
        if isinstance(change, Import):
            if all(
                cst.Module([]).code_for_node(each).strip() != change.code
                for each in self._module.body
            ):
                self._imports += self._parsed(change.code)
            return True
        where = change.at.line, change.at.column
        if isinstance(change, (Argument, Callee)):
            if (call := self._calls.get(where)) is None:
                return False
            if isinstance(change, Callee):
                self._callees[call] = cst.parse_expression(change.code)
                return True
            made = cst.ensure_type(cst.parse_expression(f"f({change.code})"), cst.Call)
            self._arguments.setdefault(call, []).extend(made.args)
            return True
        if isinstance(change, Text):
            expression = self._expressions.get((*where, change.end.line, change.end.column))
            if expression is not None:
                margin = max(each for each in self._statements if each <= where)[1]
                with suppress(cst.ParserSyntaxError):
                    self._texts[expression] = cst.parse_expression(_dedented(change.code, margin))
                    return True
        if where not in self._statements:
            return False
        block, index, node = self._statements[where]
        if isinstance(change, Text):
            code = self._parsed(change.code)
            if not index[1]:
                above = block.body[index[0]].leading_lines  # type: ignore[attr-defined]
                code[0] = code[0].with_changes(leading_lines=above)
            self._planned.setdefault(block, {}).setdefault(index, _Planned()).instead = code
            return True
        if isinstance(change, Decorator):
            added = cst.Decorator(cst.parse_expression(change.code))
            self._decorators.setdefault(node, []).append(added)
            return isinstance(node, cst.FunctionDef)
        planned = self._planned.setdefault(block, {})
        if isinstance(change, Instead):
            return self._plan_instead(change, block, index)
        here = planned.setdefault(index, _Planned())
        (here.above if isinstance(change, Above) else here.below).extend(self._parsed(change.code))
        return True

    def _plan_instead(self, change: Instead, block: _Block, first: _Index) -> bool:
        found = self._statements.get((change.last.line, change.last.column))
        if found is None or found[0] is not block:
            return False
        planned = self._planned[block]
        own = (i for b, i, _ in self._statements.values() if b is block and first <= i <= found[1])
        for index in own:
            planned.setdefault(index, _Planned()).instead = []
        planned[first].instead = self._parsed(change.code)
        return True

    def _parsed(self, code: str) -> list[_Statement]:
        made = cst.parse_module(code, config=self._module.config_for_parsing).visit(_NoBlanks())
        first, *others = made.body
        return [first.with_changes(leading_lines=made.header), *others]

    def result(self) -> cst.Module:
        """The module with all that was planned."""
        changed = self._module.visit(self)
        index = _after_imports(changed)
        return changed.with_changes(
            body=[*changed.body[:index], *self._imports, *changed.body[index:]]
        )

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        if (made := self._texts.get(original_node)) is not None:
            return made  # type: ignore[return-value]
        return super().on_leave(original_node, updated_node)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if (callee := self._callees.get(original_node)) is not None:
            updated_node = updated_node.with_changes(func=callee)
        more = self._arguments.get(original_node)
        if not more:
            return updated_node
        args = [*updated_node.args]
        if args and isinstance(end := args[-1].comma, cst.Comma):  # as the one before it ends
            more = [each.with_changes(comma=end) for each in more]
        if args:
            args[-1] = args[-1].with_changes(
                comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            )
        return updated_node.with_changes(args=[*args, *more])

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        added = self._decorators.get(original_node, [])
        return updated_node.with_changes(decorators=[*added, *updated_node.decorators])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return updated_node.with_changes(body=self._body(original_node, updated_node))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node.with_changes(body=self._body(original_node, updated_node))

    def _body(self, block: _Block, updated: _Block) -> Sequence[cst.BaseStatement]:
        planned = self._planned.get(block)
        if planned is None:
            return updated.body
        made: list[_Statement] = []
        for index, statement in enumerate(updated.body):
            own = {number: each for (at, number), each in planned.items() if at == index}
            if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) > 1 and own:
                made += _parted(statement, own)
            else:
                here = own.get(0, _Planned())
                if here.instead is None:
                    made += _with_above(here.above, statement, is_first=not made)
                else:
                    made += _spaced(here.above, is_first=not made)
                    made += _with_blank_lines(here.instead, statement)
                made += here.below
        return made


def _dedented(code: str, columns: int) -> str:
    """Code whose later lines lack the indentation of the block around it, which they get with the block."""
    first, *others = code.split("\n")
    return "\n".join(
        [first, *(line[min(columns, len(line) - len(line.lstrip())) :] for line in others)]
    )


_BLANK = cst.EmptyLine(indent=False)


def _spaced(above: Sequence[_Statement], *, is_first: bool) -> list[_Statement]:
    """Two empty lines above and below a function or class, as its neighbours have them."""
    made: list[_Statement] = []
    for each in above:
        is_below = bool(made) and isinstance(made[-1], (cst.FunctionDef, cst.ClassDef))
        if is_below or (isinstance(each, (cst.FunctionDef, cst.ClassDef)) and not is_first):
            own = dropwhile(lambda line: not line.comment, each.leading_lines)  # type: ignore[attr-defined]
            each = each.with_changes(leading_lines=[_BLANK, _BLANK, *own])
        made.append(each)
    return made


def _with_above(
    above: Sequence[_Statement], statement: _Statement, *, is_first: bool
) -> Sequence[_Statement]:
    """A statement with what comes above it, and two empty lines to a function or class there.

    Its own comments stay with it. A heading, which an empty line parts from it, stays above both.
    """
    spaced = _spaced(above, is_first=is_first)
    if not spaced or not isinstance(spaced[-1], (cst.FunctionDef, cst.ClassDef)):
        return [*spaced, statement]
    lines = [*statement.leading_lines]  # type: ignore[attr-defined]
    end = max((n for n, line in enumerate(lines) if n and line.comment is None), default=0)
    heading = lines[: end + 1] if any(line.comment for line in lines[:end]) else []
    own = dropwhile(lambda line: not line.comment, lines[len(heading) :])
    if heading:
        kept = dropwhile(lambda line: not line.comment, spaced[0].leading_lines)  # type: ignore[attr-defined]
        spaced[0] = spaced[0].with_changes(leading_lines=[*heading, *kept])
    return [*spaced, statement.with_changes(leading_lines=[_BLANK, _BLANK, *own])]


def _with_blank_lines(instead: Sequence[_Statement], statement: _Statement) -> Sequence[_Statement]:
    """With the empty lines above it that the replaced statement had."""
    lines = statement.leading_lines  # type: ignore[attr-defined]
    if not instead:
        return instead
    first, *others = instead
    above = takewhile(lambda line: not line.comment, lines)
    own = [*dropwhile(lambda line: not line.comment, first.leading_lines)]  # type: ignore[attr-defined]
    return [first.with_changes(leading_lines=[*above, *own]), *others]


def _parted(line: cst.SimpleStatementLine, planned: Mapping[int, _Planned]) -> list[_Statement]:
    """A line of several statements, in which a simple one that is added stands behind its own."""
    made: list[_Statement] = []
    beside: list[cst.BaseSmallStatement] = []

    def end_line() -> None:
        if beside:
            beside[-1] = beside[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            made.append(cst.SimpleStatementLine([*beside]))
            beside.clear()

    for number, statement in enumerate(line.body):
        here = planned.get(number, _Planned())
        is_last = number == len(line.body) - 1
        if here.above or here.instead is not None:
            end_line()
            made += here.above
        if here.instead is None:
            beside.append(statement)
        else:
            made += here.instead
        added = [part for each in here.below for part in getattr(each, "body", ())]
        is_simple = all(isinstance(each, cst.SimpleStatementLine) for each in here.below)
        if here.below and (is_last or not is_simple):
            end_line()
            made += here.below
        elif added:
            beside[-1] = beside[-1].with_changes(semicolon=_SEMICOLON)
            beside.extend(part.with_changes(semicolon=_SEMICOLON) for part in added)
    end_line()
    if made:
        made[0] = made[0].with_changes(leading_lines=line.leading_lines)
        if isinstance(last := made[-1], cst.SimpleStatementLine):
            made[-1] = last.with_changes(trailing_whitespace=line.trailing_whitespace)
    return made


def _after_imports(module: cst.Module) -> int:
    """How many statements the file's docstring and its first imports are."""
    found = 0
    for number, statement in enumerate(module.body):
        parts = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
        is_import = any(isinstance(part, (cst.Import, cst.ImportFrom)) for part in parts)
        if is_import or (number == 0 and module.get_docstring() is not None):
            found = number + 1
        elif found:
            break
    return found


def _of_file(path: str, before: str, after: str) -> Iterator[str]:
    path = path.replace(os.sep, "/")
    name = f"{path}\t" if " " in path else path  # where it ends, as git writes it
    old, new = _lines(before), _lines(after)
    # `difflib.unified_diff` takes no line of a long file as common that is there often, such as an empty one: moved
    # statements stay then, and what they were moved over moves.
    groups = difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes()
    heads = [f"--- a/{name}\n", f"+++ b/{name}\n"]
    for group in groups:
        yield from heads
        heads = []
        (_, *begins), (_, *ends) = group[0], group[-1]
        at = (f"{_rows(begins[n], ends[n + 1])}" for n in (0, 2))
        yield f"@@ -{next(at)} +{next(at)} @@\n"
        for tag, begin, end, begin_new, end_new in group:
            if tag == "equal":
                yield from (f" {line}" for line in old[begin:end])
            else:
                yield from (f"-{line}" for line in old[begin:end])
                yield from (f"+{line}" for line in new[begin_new:end_new])


def _rows(begin: int, end: int) -> str:
    """A range of lines as a diff has it: its first line, and their number."""
    count = end - begin
    return f"{begin + 1}" if count == 1 else f"{begin + bool(count)},{count}"


def _lines(text: str) -> list[str]:
    return [line for line in text.replace("\n", "\n\0").split("\0") if line]
