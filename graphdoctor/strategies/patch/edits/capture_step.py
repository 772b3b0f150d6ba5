"""Moves the statements of a training step to a captured function of its batch, and calls it in their place."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import CodeType

from graphdoctor.source.trees import always_run
from graphdoctor.strategies.patch.batch_copies import is_copy, only_copies, only_unpacks
from graphdoctor.strategies.patch.edits.averages_at_once import (
    averages_in_functions,
    averages_in_place,
    with_averages_at_once,
)
from graphdoctor.strategies.patch.edits.cured_in_functions import cured_in_functions
from graphdoctor.strategies.patch.edits.drawn_in_functions import with_draws_given
from graphdoctor.strategies.patch.edits.edit import NoProposal, Proposal
from graphdoctor.strategies.patch.edits.flags_of_counters import with_flags
from graphdoctor.strategies.patch.edits.read_after_loop import read_after_loops
from graphdoctor.strategies.patch.edits.unchecked_distributions import (
    is_unchecked,
    unchecked_distributions,
)
from graphdoctor.strategies.patch.read_values import READS
from graphdoctor.strategies.patch.source import (
    Above,
    At,
    Change,
    Decorator,
    Import,
    Instead,
    import_of_torch,
    source_of,
    top_statement,
)
from graphdoctor.strategies.patch.step_parts import (
    MODES,
    Group,
    Parts,
    assigned_reads,
    called,
    figures_below,
    functions_of,
    leaves,
    parts_of,
    updates,
    with_attributes_apart,
    with_inputs_apart,
    without_sizes,
)
from graphdoctor.target.program.names import Names, names_in_file, names_outside
from graphdoctor.target.program.rebuild import NotRebuilt, variables_of
from graphdoctor.target.program.statements import Span, find_span
from graphdoctor.values.figures import joined, ratio_range
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location, is_library
from graphdoctor.values.program import Exactness, Handled, Handling, ProgramStep

_NAMES = ("train_step", "training_step", "optimization_step", "captured_step")
_READS = frozenset({"GD101", "GD102", "GD103", "GD108"})  # the host waits for a value
_READ, _COPY = "GD101", "GD104"
_HANDLED = ("GD111", "GD112", "GD117", "GD203", "GD204", "GD205")
_WIDEST = 100  # columns of a line that is made, where the file has none that is wider


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The decorator that makes graphs of a step's function, and the import and code that the decorator needs.

    `check` raises NoProposal for functions that the decorator cannot take.
    """

    decorator: str
    imports: str
    code: str = ""
    check: Callable[[Sequence[ast.FunctionDef]], None] = lambda functions: None


CAPTURE = Wrapper("graphdoctor.capture", "import graphdoctor")


class CaptureStep:
    """Makes a function of the statements of a step, captures it, and calls it where they stood.

    A captured step's optimizers run fused kernels, which round otherwise. Distributions are not checked in it.
    """

    def __init__(self, wrapper: Wrapper = CAPTURE) -> None:
        self._wrapper = wrapper

    name = "capture the step"
    exactness: Exactness = "rounding"

    def propose(self, step: ProgramStep) -> Proposal:
        assert step.report is not None
        file = step.location.file
        if step.mode != "training":
            raise NoProposal("it trains nothing")
        if is_library(file):
            raise NoProposal("its loop is in a library")
        text = source_of(file)
        span = span_of_step(text, step)
        updated = _with_updates(span, text)
        spans = dict.fromkeys((_with_figures(updated, text), updated, span))
        wider = [made for each in spans for made in (_with_copies(each), (each, frozenset[str]()))]
        for each, batch in wider[:-1]:
            with suppress(NoProposal):
                return self._proposal(step, text, each, batch)
        return self._proposal(step, text, span, frozenset())

    def _proposal(
        self, step: ProgramStep, text: str, span: Span, copied: frozenset[str]
    ) -> Proposal:
        """Where the captured function copies the batch, whose variables are `copied`, to the GPU; or the loop does."""
        assert step.report is not None
        file = step.location.file
        outside: tuple[ast.stmt | ast.expr, ...] = ()
        rewritten: tuple[ast.expr, ...] = ()
        rounded: tuple[Change, ...] = ()
        if (function := _whole_function(span)) is not None:
            self._wrapper.check([function])
            at = At.start_of(function, file)
            changes: tuple[Change, ...] = (
                Import(file, self._wrapper.imports),
                *([Above(at, self._wrapper.code)] if self._wrapper.code else ()),
                Decorator(at, self._wrapper.decorator),
            )
            names = [function.name]
            batch = {each.arg for each in function.args.args}
        else:
            found = (f.location for f in step.report.findings if f.rule in _READS)
            reads = {each.line for each in found if each is not None and each.file == file}
            parts = parts_of(_statements(span), text, reads, copied)
            modules = frozenset(m.expression for m in step.modules)
            values = frozenset(step.host_values)
            extraction = Extraction(file, text, span, parts, values, modules, self._wrapper)
            changes, names = extraction.changes(), extraction.names
            rounded = extraction.rounded()
            kept = {group.test for group in parts.groups if group.test is not None}
            branches = [each for each in _statements(span) if isinstance(each, ast.If)]
            tests = [s.test for s in branches if ast.get_source_segment(text, s.test) in kept]
            shown = (*parts.shown, *(each for group in parts.groups for each in group.shown))
            batch, outside = extraction.batch, (*parts.prepared, *shown, *tests)
            origins = (each for group in parts.groups for each in group.origin)
            rewritten = tuple(assigned_reads(*origins))
        lines = range(span.first_line, span.last_line + 1)
        moved = range(0) if function is not None else lines
        replaced = cured_in_functions(step.report.findings, file, moved)
        unchecked = unchecked_distributions(step.report.findings, file)
        changes = (*changes, *unchecked)
        changes = (*changes, *dict.fromkeys(one for each in replaced.values() for one in each))
        estimate = step.report.estimate
        gain = estimate.whole_speedup if estimate is not None else None
        handled = dict[Finding, Handling]()
        for each in step.report.findings:
            is_rewritten = each.rule == _READ and _is_in((each.location,), file, rewritten)
            is_outside = _is_in((each.location, *each.stack), file, outside)
            if each in replaced or (is_rewritten and not is_outside):
                handled[each] = "replaced code"
            elif (
                is_outside
                or each.rule in _HANDLED
                or (each.rule == _COPY and is_copy(each, file, _statements(span), batch))
            ):
                handled[each] = "capture"
            elif unchecked and is_unchecked(each):
                handled[each] = "no argument checks"
        refused = (f for f in step.report.findings if f.effect == "capture-fails")
        left = sorted({each.rule for each in refused if each not in handled})
        once = f" once {joined(left)} {'is' if len(left) == 1 else 'are'} fixed" if left else ""
        predicted = f" ({ratio_range(gain)}, predicted{once})" if gain is not None else ""
        functions = joined([f"`{name}()`" for name in names])
        return Proposal(
            self.name,
            self.exactness,
            changes,
            f"{functions} {'runs' if len(names) == 1 else 'run'} the step, replayed as"
            f" {'a graph' if len(names) == 1 else 'graphs'} after the first calls{predicted}",
            covers=(file, lines),
            gain=None if left else gain,
            handled=tuple(Handled.of(each, by) for each, by in handled.items()),
            rounded=rounded,
        )


def _is_in(
    places: Iterable[Location | None], file: str, parts: Sequence[ast.stmt | ast.expr]
) -> bool:
    """Whether one of these places is in a part of a file."""
    lines = {n for each in parts for n in range(each.lineno, (each.end_lineno or each.lineno) + 1)}
    return any(at is not None and at.file == file and at.line in lines for at in places)


def span_of_step(text: str, step: ProgramStep) -> Span:
    """The step's statements, as the file has them now."""
    file, first, last = step.location.file, step.location.line, step.last_line
    for code in codes_in(compile(text, file, "exec")):
        if code.co_name != step.location.function or code.co_firstlineno > first:
            continue
        span = find_span(code, (first, last), last_line=last)
        if span is not None and span.first_line == first:
            return _with_targets(span)
    raise NoProposal("its statements were not found in the file")


def _statements(span: Span) -> tuple[ast.stmt, ...]:
    """With all of the last one, of which the step may be only the beginning."""
    return span.block[span.first : span.last + 1]


def _with_targets(span: Span) -> Span:
    """With the blocks without gradients just above it that compute what it reads, such as a target network's."""
    while span.first:
        above = span.block[span.first - 1]
        if not isinstance(above, ast.With) or not called(above) & MODES:
            break
        if not Names([above]).stored & Names(_statements(span)).early:
            break
        span = replace(span, first=span.first - 1)
    return span


def _with_copies(span: Span) -> tuple[Span, frozenset[str]]:
    """With the statements just above it that copy its batch to the GPU, and the variables that may be of the batch."""
    batch = names_outside(span.loop or span.owner, _statements(span), ast.Store)
    if isinstance(span.owner, ast.FunctionDef):
        batch |= {each.arg for each in span.owner.args.args}
    first = span.first
    for index in range(span.first - 1, -1, -1):
        above = span.block[index]
        if only_copies(above, batch):
            first = index
        elif not only_unpacks(above):
            break
    return replace(span, first=first), frozenset(batch)


def _with_updates(span: Span, text: str) -> Span:
    """With the statements just below that update parameters, such as a target network's or an average's.

    One that reads what the loop binds in each step is none: a decay that changes would be frozen.
    """
    functions, last = functions_of(text), span.last
    while last + 1 < len(span.block) and updates(span.block[last + 1], functions):
        below = span.block[last + 1]
        inner = below.body if isinstance(below, ast.If) else [below]
        if Names(inner).early & names_outside(span.loop or span.owner, [below], ast.Store):
            break
        last += 1
    if last == span.last:
        return span
    return span.of(span.first, last)


def _with_figures(span: Span, text: str) -> Span:
    """With the statements just below that compute and read figures in each step, such as an accuracy."""
    taken = figures_below(_statements(span), span.block[span.last + 1 :], text)
    return span.of(span.first, span.last + taken) if taken else span


def codes_in(code: CodeType) -> Iterable[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_in(each)


def _whole_function(span: Span) -> ast.FunctionDef | None:
    """The function that is the step as it is: besides it, there are only a docstring, copies of the batch and a return.

    A function inside a function is none: each call of the outer one would capture it again.
    """
    owner = span.owner
    if not isinstance(owner, ast.FunctionDef) or span.around or "<locals>" in span.code.co_qualname:
        return None
    if owner.decorator_list and "." in span.code.co_qualname:
        return None
    before, after = span.block[: span.first], span.block[span.last + 1 :]
    parameters = {each.arg for each in owner.args.args}
    is_bare = all(
        (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        or only_copies(each, parameters)
        for each in before
    )
    returns = len(after) <= 1 and all(
        isinstance(each, ast.Return) and not called(each) for each in after
    )
    adds = [s for s in _statements(span) if isinstance(s, (ast.Expr, ast.AugAssign))]
    reads = any(called(each) & READS for each in adds)
    return owner if is_bare and returns and not reads and not leaves(_statements(span)) else None


@dataclass(frozen=True, slots=True)
class Extraction:
    """The captured statements as functions of their file's top level, and what calls them.

    `host_values` are variables that would be frozen as they are: they are given as tensors on the GPU.
    """

    file: str
    text: str
    span: Span
    parts: Parts
    host_values: frozenset[str]
    modules: frozenset[str]  # as the program calls them
    wrapper: Wrapper
    stems: tuple[str, ...] = _NAMES  # of which the first that is free names a function
    row: str = ""  # a counter that the statements take as an index of one element

    def changes(self) -> tuple[Change, ...]:
        try:
            variables_of(self.span)  # raises where they cannot run in a function of their own
        except NotRebuilt as reason:
            raise NoProposal(str(reason).rstrip(".")) from None
        functions, calls, held = "", "", self._held_by_attributes()
        groups = self.parts.groups
        (*afters, after), reads = self._below_the_calls()
        given_names, more = dict[str, None](), tuple[Change, ...]()
        for number, (group, name) in enumerate(zip(groups, self.names, strict=True)):
            read = self._arguments(group)
            width = self._widest - len(self._indent)
            group = with_averages_at_once(group, self.text, self.host_values, width)
            more += (
                *averages_in_functions(group, self.file, self.text, self.host_values, self._widest),
            )
            counted = group
            group, flags = with_flags(group, self.span.around, self.text)
            group, brought = with_inputs_apart(group, read - self._kept(group))
            group, drawn, functions_changed = with_draws_given(group, self.file, self.text)
            more += functions_changed
            group, stands_for = with_attributes_apart(group, read & self._kept(group), held)
            own = {*stands_for}
            stands_for |= brought | drawn | flags
            arguments = _in_order(group, (read | {*stands_for}) & group.names.early)
            live = self._live(number) - self.parts.bound - own
            returned = _in_order(group, group.names.stored & (live | own))
            if self.parts.copied & {*returned}:
                raise NoProposal(
                    f"the program reads `{min(self.parts.copied & {*returned})}` after it, too"
                )
            unsure = _in_order(group, {*returned} - group.names.sure - {*arguments})
            elsewhere = names_outside(self.span.owner, group.origin, ast.Store)
            arguments = _in_order(group, {*arguments, *((elsewhere | own) & {*unsure})})
            unsure = [each for each in unsure if each not in arguments]
            if varies := [each for each in unsure if not self._is_fixed(counted, each)]:
                raise NoProposal(f"`{varies[0]}` is bound in some steps only, and read later")
            given_names |= dict.fromkeys(
                each
                for each in arguments
                if each not in stands_for and not _is_always_read(each, group.statements)
            )
            functions += self._function(name, arguments, returned, group, unbound=unsure)
            frozen = self.host_values.difference(returned)
            of_host = frozen.difference(stands_for)
            given = [
                self._tensor_of(each, group, is_of_host=each in of_host)
                or stands_for.get(each, each)
                for each in arguments
            ]
            bound = [stands_for.get(each, each) for each in returned]
            call = self._call(name, given, bound, group) + afters[number]
            if group.test is not None:
                call = f"{group.above}if {group.test}:\n{textwrap.indent(call, self._indent)}"
            calls += call
        makes_tensors = re.search(r"torch\.(as_tensor|full)\(", calls) is not None
        made = ast.parse(functions).body
        self.wrapper.check([each for each in made if isinstance(each, ast.FunctionDef)])
        statements = _statements(self.span)
        prepared = self.parts.before + self.parts.drawing
        return (
            *(import_of_torch(self.file) if makes_tensors else ()),
            Import(self.file, self.wrapper.imports),
            Above(
                top_statement(self.file, self.text, self.span.first_line),
                self.wrapper.code + functions,
            ),
            *more,
            *reads,
            *self._bound_in_every_case(given_names),
            Instead(
                At.start_of(statements[0], self.file),
                At.start_of(statements[-1], self.file),
                prepared + calls + after,
            ),
        )

    def _tensor_of(self, name: str, group: Group, *, is_of_host: bool) -> str:
        """The tensor that a call passes for a value of the host or for the row; "" for what is passed as it is."""
        if is_of_host:
            device = "" if _is_index(name, group.statements) else ', device="cuda"'
            return f"torch.as_tensor({name}{device})"
        return f'torch.full((1,), {name}, device="cuda")' if name == self.row else ""

    def _below_the_calls(self) -> tuple[list[str], list[Change]]:
        """What comes after the call of each group, and after all; and changes elsewhere that this needs."""
        codes = [*(group.after for group in self.parts.groups), self.parts.after]
        if import_of_torch(self.file):
            return codes, []
        groups, indent = self.parts.groups, self._indent
        return read_after_loops(codes, self.span, groups, self.file, self.text, indent)

    def rounded(self) -> tuple[Change, ...]:
        """What of the changes rounds otherwise, in the program's own statements."""
        found: list[Change] = []
        for group in self.parts.groups:
            for averages in (averages_in_place, averages_in_functions):
                found += averages(group, self.file, self.text, self.host_values, self._widest)
        return tuple(found)

    def _bound_in_every_case(self, names: Iterable[str]) -> Iterable[Change]:
        """`name = None` for arguments that the program binds under a condition only, as it reads them."""
        before = self._before()
        sure = Names(before).sure | self._bound_around()
        for name in names:
            if name in sure or name not in Names(before).stored:
                continue
            first = next(each for each in before if name in Names([each]).stored)
            yield Above(At.start_of(first, self.file), f"{name} = None\n")

    def _bound_around(self) -> set[str]:
        """Names that the step's function gets, and that the loops and `with` statements around the step bind."""
        owner = self.span.owner
        given = ast.walk(owner.args) if isinstance(owner, ast.FunctionDef) else ()
        found = {each.arg for each in given if isinstance(each, ast.arg)}
        for holder in self.span.around:
            items = [each.optional_vars for each in getattr(holder, "items", ())]
            for part in (getattr(holder, "target", None), *items):
                found |= Names([ast.Expr(part)]).stored if part is not None else set()
        return found

    def _before(self) -> list[ast.stmt]:
        """The statements of the step's function that run before the step."""
        found: list[ast.stmt] = []
        for holder in self.span.around:
            block = self.span.block_with(holder)
            found += block[: block.index(holder)]
        return [*found, *self.span.block[: self.span.first], *self.parts.prepared]

    def _held_by_attributes(self) -> frozenset[str]:
        """Objects that attributes hold, such as `self.model`: the modules, and what the step's class assigns."""
        held = set(self.modules)
        for cls in (n for n in ast.walk(ast.parse(self.text)) if isinstance(n, ast.ClassDef)):
            if cls.lineno <= self.span.first_line <= (cls.end_lineno or cls.lineno):
                methods = {each.name for each in cls.body if isinstance(each, ast.FunctionDef)}
                assigned = (
                    n
                    for n in ast.walk(cls)
                    if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
                )
                held |= {ast.unparse(n) for n in assigned if n.attr not in methods}
        return frozenset(held)

    def _kept(self, group: Group) -> set[str]:
        """Variables that stay bound to one object while the steps run."""
        around = self.span.loop or self.span.owner
        return group.names.loaded - names_outside(around, (), ast.Store)

    @property
    def batch(self) -> set[str]:
        """The arguments that vary from step to step."""
        return {n for each in self.parts.groups for n in self._arguments(each) - self._kept(each)}

    def _is_fixed(self, group: Group, name: str) -> bool:
        """Whether what decides about the statements that bind a name is the same in each step."""
        varying = names_outside(self.span.loop or self.span.owner, group.origin, ast.Store)
        varying |= group.names.stored
        branches = (n for s in group.statements for n in ast.walk(s) if isinstance(n, ast.If))
        own = [n for n in branches if name in Names([n]).stored]
        tests = (Names([ast.Expr(branch.test)]).loaded for branch in own)
        return bool(own) and not any(test & varying for test in tests)

    def _function(
        self,
        name: str,
        arguments: Sequence[str],
        returned: Sequence[str],
        group: Group,
        *,
        unbound: Sequence[str],
    ) -> str:
        body = "".join(f"{each} = None\n" for each in unbound) + group.code
        body += f"return {', '.join(returned)}\n" if returned else ""
        head = f"@{self.wrapper.decorator}\ndef {name}({', '.join(arguments)}):\n"
        if len(head.split("\n")[-2]) > self._widest:
            inner = textwrap.fill(", ".join(arguments), self._widest - len(self._indent))
            head = f"@{self.wrapper.decorator}\ndef {name}(\n{textwrap.indent(inner, self._indent)}\n):\n"
        return head + textwrap.indent(body, self._indent)

    def _call(self, name: str, given: Sequence[str], returned: Sequence[str], group: Group) -> str:
        bound = f"{', '.join(returned)} = " if returned else ""
        column = self.span.block[self.span.first].col_offset
        column += len(self._indent) if group.test is not None else 0
        line = f"{bound}{name}({', '.join(given)})"
        if column + len(line) <= self._widest:
            return line + "\n"
        inner = textwrap.fill(", ".join(given), self._widest - column - len(self._indent))
        return f"{bound}{name}(\n{textwrap.indent(inner, self._indent)}\n)\n"

    @property
    def _widest(self) -> int:
        return max(_WIDEST, max(map(len, self.text.split("\n"))))

    @property
    def names(self) -> list[str]:
        """Names for the functions that the file does not use, written as its other functions are."""
        taken, functions = names_in_file(self.text), functions_of(self.text)
        camel = sum(bool(re.match(r"[a-z]+[A-Z]", name)) for name in functions)
        is_camel = camel > sum("_" in name.strip("_") for name in functions)
        made: list[str] = []
        for group in self.parts.groups:
            own = (group.name,) if len(self.parts.groups) > 1 and group.name else ()
            for name in (*own, *self.stems):
                first, *others = name.split("_")
                written = first + "".join(map(str.title, others)) if is_camel else name
                if written not in taken and written not in made:
                    made.append(written)
                    break
            else:
                raise NoProposal(f"the names {', '.join(self.stems)} are all taken")
        return made

    @property
    def _indent(self) -> str:
        """One level, as the file has it where the step stands."""
        column = self.span.block[self.span.first].col_offset
        # Classes and functions, and "<module>" outside them.
        outer = self.span.code.co_qualname.split(".")
        levels = len(self.span.around) + sum(not each.startswith("<") for each in outer)
        line = self.text.split("\n")[self.span.first_line - 1]
        return line[: column // levels] if levels and column else "    "

    def _arguments(self, group: Group) -> set[str]:
        """What the captured statements read of their function, or of the loop around them."""
        span, drawn = self.span, {self.parts.drawn}
        early = group.names.early - self._bound_by_its_branches(group)
        if not span.is_whole_file:
            code = span.code
            return early & {*code.co_varnames, *code.co_cellvars, *code.co_freevars, *drawn}
        around = span.loop or span.owner
        elsewhere = names_outside(around, group.origin, ast.Store)
        return early & (elsewhere | group.names.stored | drawn)

    def _bound_by_its_branches(self, group: Group) -> set[str]:
        """Variables that only the group binds, and under conditions that are the same in each step."""
        elsewhere = names_outside(self.span.owner, group.origin, ast.Store)
        own = group.names.stored - elsewhere - _WithBranches(group.statements).early
        own -= {n.arg for n in ast.walk(self.span.owner) if isinstance(n, ast.arg)}
        own -= {*self.span.code.co_freevars}
        return {name for name in own & group.names.early if self._is_fixed(group, name)}

    def _live(self, number: int) -> set[str]:
        """What is read after a group of captured statements before it is bound anew."""
        span, parts = self.span, self.parts
        own = parts.groups[number].shown
        later = [s for g in parts.groups[number + 1 :] for s in (*g.statements, *g.shown)]
        tests = [ast.parse(g.test).body[0] for g in parts.groups[number + 1 :] if g.test]
        rest: list[ast.stmt] = [*own, *tests, *later, *parts.shown, *span.block[span.last + 1 :]]
        rest = without_sizes(rest, parts.sized)
        live = set[str]()
        step = [s for group in parts.groups for s in (*group.statements, *group.shown)]
        start = [*span.block[: span.first], *parts.prepared, *step]
        for holder in reversed(span.around):
            if isinstance(holder, ast.While):
                live |= Names([*rest, ast.Expr(holder.test), *start]).early
            if isinstance(holder, ast.For):
                start = [ast.Assign([holder.target], holder.iter), *start]
                live |= Names([*rest, *start]).early
            block = span.block_with(holder)
            index = block.index(holder)
            rest += without_sizes(block[index + 1 :], parts.sized)
            start = [*block[:index], *start]
        live |= Names(rest).early
        if span.is_whole_file:  # functions read what the file's statements bind
            functions = [n for n in ast.walk(span.owner) if isinstance(n, ast.FunctionDef)]
            live |= Names(functions).early
        return live


class _WithBranches(Names):
    """The names of statements if each branch bound what any of its sides does."""

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        before, after = set(self.sure), set(self.sure)
        for side in (node.body, node.orelse):
            self.sure = set(before)
            self._visit_all(side)
            after |= self.sure
        self.sure = after


def _is_always_read(name: str, statements: Iterable[ast.stmt]) -> bool:
    """Whether statements read a name outside their branches, too."""
    names = (n for n in always_run(statements) if isinstance(n, ast.Name) and n.id == name)
    return any(isinstance(each.ctx, ast.Load) for each in names)


def _is_index(name: str, statements: Iterable[ast.stmt]) -> bool:
    """Whether statements only index with a variable: the index may be on the CPU, and a replay copies it without a
    wait of the host.
    """
    nodes = [n for statement in statements for n in ast.walk(statement)]
    subscripts = (n for n in nodes if isinstance(n, ast.Subscript))
    in_indices = {id(n) for each in subscripts for n in ast.walk(each.slice)}
    uses = (n for n in nodes if isinstance(n, ast.Name) and n.id == name)
    return all(id(each) in in_indices for each in uses)


def _in_order(group: Group, names: set[str]) -> list[str]:
    """In the order in which the statements name them first."""
    found = (n for s in group.statements for n in ast.walk(s) if isinstance(n, ast.Name))
    nodes = sorted(found, key=lambda n: (n.lineno, n.col_offset))
    return [*dict.fromkeys(n.id for n in nodes if n.id in names)]
