"""Captures the model's call in a loop that decodes or acts, up to the next token or action.

Either the function that makes the call gets a decorator, or the statements of the loop become a function.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from graphdoctor.source.trees import calls_in, last_name
from graphdoctor.strategies.patch.edits.capture_model import gain_of_modules
from graphdoctor.strategies.patch.edits.capture_step import CAPTURE, Extraction, codes_in
from graphdoctor.strategies.patch.edits.edit import NoProposal, Proposal
from graphdoctor.strategies.patch.edits.unchecked_distributions import unchecked_at
from graphdoctor.strategies.patch.edits.unchecked_draws import (
    is_replaceable,
    unchecked_samples,
    with_unchecked_draws,
)
from graphdoctor.strategies.patch.read_values import always_waits
from graphdoctor.strategies.patch.rollout_rows import rollout_of
from graphdoctor.strategies.patch.source import (
    At,
    Change,
    Decorator,
    Import,
    import_of_torch,
    source_of,
)
from graphdoctor.strategies.patch.step_parts import (
    MODES,
    Parts,
    as_one_group,
    called,
    leaves,
    read_on_host,
)
from graphdoctor.target.program.names import Names
from graphdoctor.target.program.statements import LOOPS, Span, find_span
from graphdoctor.values.locations import Lines, is_library
from graphdoctor.values.program import Exactness, ProgramStep

_DECODES = ("decode_step", "next_token_step", "captured_step")
_ACTS = ("act", "policy_step", "captured_step")
_JOINS = frozenset({"cat", "concat", "concatenate", "hstack", "append"})  # what gets longer
_ON_HOST = frozenset({"item", "tolist", "cpu", "numpy", "print", "decode", "append", "write"})
_RANGES = frozenset({"range", "reversed", "len", "size"})
_WITHOUT_GRADIENTS = replace(CAPTURE, decorator=f"{CAPTURE.decorator}\n@torch.no_grad()")
# Of a tensor with gradients, these are values without any.
_VALUES = frozenset(
    {"detach", "data", "argmax", "item", "tolist", "numpy", "shape", "size", "dim", "dtype"}
)


class CaptureDecode:
    """Captures what a loop does to get from one token to the next, where the call of the model is safe.

    `with_rows`: with the adjacent statements that write a row of a rollout.
    """

    def __init__(self, *, with_rows: bool = False) -> None:
        self.name = "capture the step of a rollout" if with_rows else "capture the decode step"
        self._with_rows = with_rows

    exactness: Exactness = "bitwise"

    def propose(self, step: ProgramStep) -> Proposal:
        """Raises NoProposal."""
        assert step.report is not None
        _check(step)
        text = source_of(step.location.file)
        captured = _captured(step, text, with_rows=self._with_rows)
        functions = functions_called(captured.statements, text)
        estimate = step.report.estimate
        return Proposal(
            self.name,
            self.exactness,
            (*captured.changes, *_without_host_checks(captured, functions)),
            f"`{captured.name}()` {captured.what}, replayed as a graph after the first calls"
            f"{gain_of_modules(step.report)}{captured.advice}",
            frozenset((m.file, m.expression) for m in step.modules if m.expression),
            covers=(captured.file, range(captured.first_line, captured.last_line + 1)),
            captured=lines_of((*captured.statements, *functions), captured.file),
            gain=estimate.whole_speedup if estimate is not None else None,
        )


def functions_called(statements: Iterable[ast.stmt], text: str) -> list[ast.FunctionDef]:
    """The functions of the file that statements call."""
    names = {name for each in statements for name in called(each)}
    nodes = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))
    return [each for each in nodes if each.name in names]


def lines_of(statements: Iterable[ast.stmt], file: str) -> tuple[Lines, ...]:
    """The lines of captured statements, without those whose value the host reads after the call."""
    return tuple(
        Lines(file, each.lineno, each.end_lineno or each.lineno)
        for each in statements
        if read_on_host(each) is None
    )


@dataclass(frozen=True, slots=True)
class _Captured:
    """A function that is captured, the changes that make it so, and the statements that it runs."""

    file: str
    name: str
    changes: tuple[Change, ...]
    statements: Sequence[ast.stmt]
    first_line: int
    last_line: int
    what: str = "gets from one token to the next"
    advice: str = ""


def _check(step: ProgramStep) -> None:
    """Raises NoProposal for a step that is no safe call of the program's own."""
    assert step.report is not None
    if step.mode != "inference":
        raise NoProposal("it trains")
    if is_library(step.location.file):
        name = os.path.basename(step.location.file)
        raise NoProposal(f"its call is in {name}, a file of a library")
    if step.report.verdict != "safe":
        raise NoProposal("the call of its model is not safe to capture")


def _captured(step: ProgramStep, text: str, *, with_rows: bool) -> _Captured:
    """The function that makes the call, if it can be captured as it is, or the statements of the loop around."""
    span, file = _span_of_call(text, step), step.location.file
    trains = any(module.trains for module in step.modules)
    if (loop := span.loop) is None:
        function, loop, calling = _function(span, text)
        if calling is None and with_rows:
            raise NoProposal("the function that makes the call is captured as it is")
        if calling is None:
            return _decorated(file, function, span.first_line)
        span = _span_at(text, file, calling)
        trains = trains or not _is_without_gradients(span)
    modules = frozenset(module.expression for module in step.modules)
    return _extracted(file, text, span, loop, modules, trains=trains, with_rows=with_rows)


def _decorated(file: str, function: ast.FunctionDef, first_line: int) -> _Captured:
    at = At.start_of(function, file)
    changes = (Import(file, CAPTURE.imports), Decorator(at, CAPTURE.decorator))
    last_line = function.end_lineno or 0
    return _Captured(file, function.name, changes, function.body, first_line, last_line)


def _extracted(
    file: str,
    text: str,
    span: Span,
    loop: ast.stmt,
    modules: frozenset[str],
    *,
    trains: bool,
    with_rows: bool,
) -> _Captured:
    """The statements up to the next token or action, as a function: without gradients if the model also `trains`.

    `loop` is around the statements, or around a call of the function that they are in.
    """
    acts = _acts(loop)
    span = _to_the_token(span)
    rollout = rollout_of(span, counted_by(span.around)) if with_rows else None
    span = rollout.span if rollout is not None else span
    code = [*span.block[span.first : span.last + 1]]
    parts = as_one_group(code, text)
    (group,) = parts.groups
    group = rollout.by_index(group) if rollout is not None else group
    parts = replace(parts, groups=(with_unchecked_draws(group, text),))
    if trains and (name := _differentiated(span, parts)):
        raise NoProposal(f"a gradient may be taken of `{name}` later")
    wrapper = _WITHOUT_GRADIENTS if trains else CAPTURE
    stems = _ACTS if acts else _DECODES
    row = rollout.counter if rollout is not None else ""
    made = Extraction(file, text, span, parts, frozenset(), modules, wrapper, stems, row)
    changes, (name,) = made.changes(), made.names
    if trains:
        changes = (*import_of_torch(file), *changes)
    caches = Names(code).early & {*_new_caches(span)}
    return _Captured(
        file,
        name,
        changes,
        code,
        span.first_line,
        span.last_line,
        what="computes the next action and writes it into the rollout's storage"
        if rollout is not None
        else "computes the next action"
        if acts
        else "gets from one token to the next",
        advice=f"; make `{min(caches)}` once and reset it, since each cache gets a graph"
        if caches
        else "",
    )


def _without_host_checks(
    captured: _Captured, functions: Iterable[ast.FunctionDef]
) -> tuple[Change, ...]:
    """Changes for distributions that the captured statements make, and the functions of the file that they call."""
    file = captured.file
    lines = {captured.first_line, *(each.lineno for each in functions)}
    places = {(file, line) for line in lines}
    return (*unchecked_at(file, places), *unchecked_samples(file, places))


def _span_of_call(text: str, step: ProgramStep) -> Span:
    """The statement that calls the model, as the file has it now."""
    return _span_at(text, step.location.file, step.location.line, step.location.function)


def _span_at(text: str, file: str, line: int, function: str = "") -> Span:
    """The statement on a line of the innermost function, or of the one that is named."""
    found = None
    for code in codes_in(compile(text, file, "exec")):
        if function not in ("", code.co_name) or code.co_firstlineno > line:
            continue
        span = find_span(code, (line,), last_line=line)
        found = span if span is not None else found
        if span is not None and function:
            break
    if found is None:
        raise NoProposal("its statement was not found in the file")
    return found


def _trains(loop: ast.stmt) -> bool:
    return "backward" in called(loop)


def _acts(loop: ast.stmt) -> bool:
    """Whether the loop gives what it computes to an environment, or trains with it."""
    functions = (call.func for call in calls_in(loop))
    steps = (f for f in functions if isinstance(f, ast.Attribute) and f.attr == "step")
    return _trains(loop) or any("env" in ast.unparse(each.value).lower() for each in steps)


def _to_the_token(span: Span) -> Span:
    """With the statements below that compute with what the call gives. Raises NoProposal."""
    statement = span.block[span.first]
    if not computes(statement) and read_on_host(statement) is None:
        raise NoProposal("the statement that calls the model does more than to bind its result")
    if waits := _waits(statement, is_rewritten=True):
        raise NoProposal(f"the host waits for `{waits}()` in the statement that calls the model")
    counters = {*counted_by(span.around)}
    if counted := Names([statement]).early & counters:
        raise NoProposal(f"it reads the loop's counter `{min(counted)}`: count in a GPU tensor")
    made, last = Names([statement]).stored, span.first
    on_gpu = computes(statement)
    while on_gpu and last + 1 < len(span.block):
        statement = span.block[last + 1]
        names = Names([statement])
        if not names.early & made or names.early & counters:
            break
        if _grows(statement) or _waits(statement, is_rewritten=True):
            break
        on_gpu = computes(statement, made)
        if not on_gpu and read_on_host(statement) is None:
            break
        made, last = made | names.stored, last + 1
    taken = span.block[span.first : last + 1]
    if span.loop and not Names(taken).early & _made_from(Names(taken).stored, span.loop):
        raise NoProposal("its loop gives nothing of one call to the next one")
    return span.of(span.first, last)


def _is_without_gradients(span: Span) -> bool:
    """Whether the code around says so."""
    decorators = getattr(span.owner, "decorator_list", [])
    around = [each for each in span.around if isinstance(each, ast.With)]
    headers = [*decorators, *(item.context_expr for each in around for item in each.items)]
    return any(called(each) & MODES for each in headers)


def _differentiated(span: Span, parts: Parts) -> str:
    """What the captured statements give of which a gradient might be taken later; "" for nothing."""
    (group,) = parts.groups
    made = group.names.stored - Names(parts.shown).stored
    inside = {id(n) for s in group.origin for n in ast.walk(s)}
    parents = {child: node for node in ast.walk(span.owner) for child in ast.iter_child_nodes(node)}
    for node in parents:
        if not isinstance(node, ast.Name) or node.id not in made or id(node) in inside:
            continue
        around = parents[node]
        is_value = isinstance(around, ast.Attribute) and around.attr in _VALUES
        is_argument = isinstance(around, ast.Call) and last_name(around.func) in _VALUES
        if isinstance(node.ctx, ast.Load) and not is_value and not is_argument:
            return node.id
    return ""


def _made_from(names: set[str], loop: ast.stmt) -> set[str]:
    """What a loop's statements bind to what they make of these variables, in however many steps."""
    made, known = {*names}, 0
    statements = [n for n in ast.walk(loop) if isinstance(n, ast.stmt) and not hasattr(n, "body")]
    while len(made) > known:
        known = len(made)
        each = (Names([statement]) for statement in statements)
        made |= {name for one in each if one.loaded & made for name in one.stored}
    return made


def computes(statement: ast.stmt, made: Container[str] = ()) -> bool:
    """Whether it only binds variables to what the GPU may compute, be it in branches or loops over ranges.

    In place it changes nothing but what was `made` just before.
    """
    if leaves([statement]) or called(statement) & _ON_HOST:
        return False
    if isinstance(statement, ast.If):
        return all(computes(each, made) for each in (*statement.body, *statement.orelse))
    if isinstance(statement, ast.For):
        is_range = called(statement.iter) & {"range"} and called(statement.iter) <= _RANGES
        return bool(is_range) and all(
            computes(s, made) for s in (*statement.body, *statement.orelse)
        )
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.target, ast.Name) and statement.target.id in made
    if isinstance(statement, ast.Assign):
        return all(isinstance(n, (ast.Name, ast.Tuple, ast.Subscript)) for n in statement.targets)
    return isinstance(statement, ast.AnnAssign)


def _waits(statement: ast.stmt, *, is_rewritten: bool = False) -> str:
    """A function that it calls whose operator always makes the host wait, such as `torch.normal(0.0, scale)`."""
    for call in (n for n in ast.walk(statement) if isinstance(n, ast.Call)):
        if is_rewritten and is_replaceable(call):
            continue
        if always_waits(call):
            return last_name(call.func)
    return ""


def _grows(statement: ast.stmt) -> bool:
    names = Names([statement])
    return bool(called(statement) & _JOINS) and bool(names.stored & names.loaded)


def counted_by(around: Sequence[ast.stmt]) -> Iterator[str]:
    """Python numbers that loops count."""
    for loop in around:
        if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
            continue
        name = ast.unparse(loop.iter.func)
        counted = loop.target
        if name == "enumerate" and isinstance(counted, ast.Tuple):
            counted = counted.elts[0]
        if name in ("enumerate", "range", "trange", "tqdm.trange"):
            yield from Names([ast.Assign([counted], ast.Constant(0))]).stored


def _new_caches(span: Span) -> Iterator[str]:
    """Variables of the step's function that it binds to a new cache each time."""
    if isinstance(span.owner, ast.FunctionDef):
        for node in (n for n in ast.walk(span.owner) if isinstance(n, ast.Assign)):
            if any(name.endswith("Cache") for name in called(node.value)):
                yield from Names([node]).stored


def _function(span: Span, text: str) -> tuple[ast.FunctionDef, ast.stmt, int | None]:
    """The function that makes the call, the loop of the file that calls it to get on, and the line to capture.

    Without a line, the function can be captured as it is. In a loop that trains, the function is called for training,
    too. Where the function reads values on the host, the call of the model can be captured. Raises NoProposal.
    """
    owner = span.owner
    if not isinstance(owner, ast.FunctionDef) or "<locals>" in span.code.co_qualname:
        raise NoProposal("no loop of its file makes the call")
    is_method = "." in span.code.co_qualname
    decorators = {
        last_name(each.func if isinstance(each, ast.Call) else each)
        for each in owner.decorator_list
    }
    loops = [n for n in ast.walk(ast.parse(text)) if isinstance(n, LOOPS)]
    for loop in loops:
        statements = (n for n in ast.walk(loop) if isinstance(n, ast.Assign))
        for statement in (s for s in statements if owner.name in called(s)):
            given = Names([ast.Expr(statement.value)]).loaded
            if not given & _made_from(Names([statement]).stored, loop):
                continue
            if called(owner) & _ON_HOST:
                return owner, loop, span.first_line
            if _trains(loop):
                return owner, loop, statement.lineno
            if (is_method and decorators) or not decorators <= MODES:
                raise NoProposal(f"`{owner.name}()` has other decorators")
            if Names(owner.body).suspends:
                raise NoProposal(f"`{owner.name}()` gives its values to its caller one by one")
            if waits := next(filter(None, map(_waits, owner.body)), ""):
                raise NoProposal(f"the host waits for `{waits}()` in `{owner.name}()`")
            if counters := given & {*counted_by([loop])}:
                raise NoProposal(
                    f"it is given the loop's counter `{min(counters)}`: count in a GPU tensor"
                )
            return owner, loop, None
    raise NoProposal(f"no loop of its file gives what `{owner.name}()` returns to its next call")
