"""Sorts a step's statements: what only prepares it, what is captured, what only shows what came of it."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import groupby

from graphdoctor.source.trees import MAKES_TENSOR, calls_in, is_scope, last_name, walk_until
from graphdoctor.strategies.patch.batch_copies import copies_in, of_one_size, only_copies
from graphdoctor.strategies.patch.drawn_batches import drawn_first, source_segment
from graphdoctor.strategies.patch.edits.edit import NoProposal
from graphdoctor.strategies.patch.read_values import READS, computes_figures, with_values_apart
from graphdoctor.strategies.patch.source import Place, with_places
from graphdoctor.target.program.names import Names, names_in_file

_SHOWS = frozenset(
    {"print", "info", "debug", "warning", "log", "add_scalar"}
    | {"set_description", "set_postfix", "set_postfix_str"}
    | {"save", "save_image", "savefig"}
)
_TRAINS = frozenset({"backward", "step", "zero_grad", "clip_grad_norm_", "clip_grad_value_"})
# What prepares a batch on the host: a statement that calls one of these can run before the graph ...
_BRINGS = MAKES_TENSOR | {"to", "cuda", "pin_memory", "next", "size", "len", "item"}
# ... if it calls nothing else than these.
_DRAWS = frozenset({"rand", "randn", "randint", "random", "normal", "uniform"})
_PREPARES = _BRINGS | {
    *("array", "astype", "device", "iter", "range", "int", "float", "bool", "long", "Variable"),
    *("view", "reshape", "unsqueeze", "squeeze", "permute"),
    *("full", "zeros", "ones", "fill_", "type", *_DRAWS),
}
MODES = frozenset({"no_grad", "inference_mode"})
# What names the tensors that a moving average goes through.
_NAMES_TENSORS = frozenset(
    {"detach", "parameters", "named_parameters", "buffers", "state_dict", "dict", "OrderedDict"}
)


@dataclass(frozen=True, slots=True)
class Group:
    """Statements that become one function, with their source at the left margin.

    `origin` are the file's own statements, of which `statements` may leave something out. The group runs where
    `test` holds, an expression of the program; None: always. There, `shown` come after it, with the source `after`;
    `above` are the comments of the branch.
    `name` is what its function may be called, for what its optimizer is called for.
    """

    origin: tuple[ast.stmt, ...]
    statements: tuple[ast.stmt, ...]
    code: str
    test: str | None = None
    above: str = ""
    shown: tuple[ast.stmt, ...] = ()
    after: str = ""

    @property
    def names(self) -> Names:
        return Names(self.statements)

    def with_code(self, code: str) -> Group:
        return replace(self, statements=tuple(ast.parse(code).body), code=code)

    @property
    def name(self) -> str:
        for node in (n for s in self.statements for n in ast.walk(s)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                holder = node.func.value
                if node.func.attr == "step" and isinstance(holder, (ast.Name, ast.Attribute)):
                    words = last_name(holder).lower().split("_")
                    kept = [w for w in words if w not in ("optimizer", "optim", "opt")]
                    return "_".join([*kept, "step"]) if kept else ""
        return "" if any("backward" in called(s) for s in self.statements) else "update_parameters"


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a step in their order, each with its source: `before` and `after` stay in the program.

    `drawing` makes the list `drawn` of the batches of all passes, and binds `bound` to those of the next step;
    all are empty where no loop draws them. `copied` are what the step's copies of the batch to the GPU are bound to;
    those that are `sized` the program has on the CPU, in the same sizes.
    """

    groups: tuple[Group, ...]
    prepared: tuple[ast.stmt, ...]
    shown: tuple[ast.stmt, ...]
    before: str
    after: str
    drawing: str = ""
    drawn: str = ""
    bound: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()
    sized: frozenset[str] = frozenset()


def parts_of(
    statements: Sequence[ast.stmt],
    text: str,
    reads: set[int],
    batch: AbstractSet[str] = frozenset(),
) -> Parts:
    """Move what only prepares or only shows out of the step, where the others do not depend on it.

    `reads` are lines on which the host was seen to read the device. Copies of `batch` to the GPU are part of the
    step. Raises NoProposal.
    """
    source = _Source(text)
    rest, shown, showing = _without_shown(statements, reads, source)
    rest, prepared = _without_prepared(rest, batch)
    rest, prepared = _with_items_first(rest, prepared, batch, source)
    copied = {name for each in rest for name, _ in copies_in(each, batch)}
    sized = {name for each in rest for name in of_one_size(each, batch)}
    if not any("backward" in called(each) for each in rest):
        raise NoProposal("its statements call no backward()")
    if leaves(rest):
        raise NoProposal("a statement of it leaves its loop or function")
    drawing, drawn, bound = "", "", frozenset[str]()
    taken = _names_in(statements)
    for index, statement in enumerate(rest):
        if (found := drawn_first(statement, text, taken)) is not None:
            source.codes[found.loop] = source.comments(statement) + found.code
            source.origins[found.loop] = statement
            rest[index] = found.loop
            drawing, drawn, bound = found.before, found.name, found.bound
            break
    return Parts(
        groups=tuple(_groups(rest, reads, source)),
        prepared=tuple(prepared),
        shown=tuple(shown),
        before=source.of(prepared),
        after=showing,
        drawing=drawing,
        drawn=drawn,
        bound=bound,
        copied=frozenset(copied),
        sized=frozenset(sized),
    )


def figures_below(step: Sequence[ast.stmt], below: Sequence[ast.stmt], text: str) -> int:
    """How many statements below a step compute figures of its tensors, such as an accuracy, and read them each time.

    0 for a step with branches that are groups: those are its last statements.
    """
    source, names = _Source(text), Names(step)
    made, known = {*names.stored}, names.loaded | names.stored | source.imported
    known -= _bound_to_next(step, text)
    functions, read = functions_of(text), set[str]()
    if any(_is_branch(s) and (_steps(s) or updates(s, functions)) for s in step):
        return 0
    found, computes = 0, False
    for number, statement in enumerate(below, start=1):
        own = Names([statement])
        if computes_figures(statement, known, made) and not own.stored & read:
            made, known, computes = made | own.stored, known | own.stored, True
        elif _counts(statement, [*step, *below]):
            read |= own.loaded | own.stored
        elif isinstance(statement, (ast.Expr, ast.AugAssign)) and _is_shown(statement, set()):
            read |= own.loaded | own.stored
            figures, _ = with_values_apart(ast.unparse(statement), known, made, frozenset())
            if figures or (computes and own.loaded & made):
                found = number
        else:
            break
    return found


def as_one_group(statements: Sequence[ast.stmt], text: str) -> Parts:
    """All statements as they are, but for what the last one does on the host, which comes after. Raises NoProposal."""
    source, *first, last = _Source(text), *statements
    found = read_on_host(last)
    if found is None:
        return Parts((_group(statements, source),), (), (), "", "")
    target, inner = found
    assert isinstance(last, ast.Assign)
    own, value = source_segment(text, inner), source_segment(text, last.value)
    after = f"{target} = {value.replace(own, target, 1)}\n"
    shown = tuple(ast.parse(after).body)
    if isinstance(inner, ast.Name):
        return Parts((_group(first, source),), (), shown, "", source.of([last]))
    code = f"{target} = {own}\n"
    (kept,) = ast.parse(code).body
    source.codes[kept], source.origins[kept] = source.comments(last) + code, last
    return Parts((_group([*first, kept], source),), (), shown, "", after)


def read_on_host(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """The variable that a statement binds to what the host reads, and the value that is still on the GPU.

    `x` and `f(y)` of `x = f(y).cpu().numpy()`; None for a statement that is not of this kind.
    """
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None
    reads = [
        call.func.value
        for call in calls_in(statement.value)
        if isinstance(call.func, ast.Attribute) and call.func.attr in READS
    ]
    inner = reads[-1] if reads else None  # the innermost of a chain
    if inner is None or called(inner) & READS or len(statement.targets) > 1:
        return None
    while isinstance(inner, ast.Call) and last_name(inner.func) == "detach":
        assert isinstance(inner.func, ast.Attribute)
        inner = inner.func.value
    outside = [n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)]
    for node in (n for n in ast.walk(inner) if isinstance(n, ast.Name)):
        outside.remove(node.id)
    is_apart = not {*outside} & Names([ast.Expr(inner)]).loaded
    return (statement.targets[0].id, inner) if is_apart else None


def _without_shown(
    statements: Sequence[ast.stmt], reads: set[int], source: _Source
) -> tuple[list[ast.stmt], list[ast.stmt], str]:
    """The statements without those that only show values, which come after, and the source of these.

    What those compute of the step's tensors stays in its place, except after a branch that is a group.
    """
    rest: list[ast.stmt] = []
    apart: dict[ast.stmt, ast.stmt] = {}  # by statement, itself or a part that only shows values
    for statement in reversed(statements):
        later = Names(rest)
        is_apart = _is_shown(statement, reads) or _counts(statement, statements)
        is_apart = is_apart or _sets_rate(statement, statements, reads)
        if _is_free_of(statement, later) and is_apart:
            apart[statement] = statement
        elif (inner := _shown_inside(statement, later, reads)) is not None:
            apart[statement] = inner
            rest[:0] = source.instead(statement, inner, "")
        else:
            rest.insert(0, statement)
    names = Names(rest)
    known = (names.loaded | names.stored | source.imported) - Names(apart.values()).stored
    known -= _bound_to_next(statements, source.text)
    functions = functions_of(source.text)
    taken = names_in_file(source.text)
    kept: list[ast.stmt] = []
    shown: list[ast.stmt] = []
    code = ""
    for statement in statements:
        part = apart.get(statement)
        if part is None:
            kept.append(statement)
            continue
        is_after_branch = any(_is_branch(s) and (_steps(s) or updates(s, functions)) for s in kept)
        made = set[str]() if is_after_branch else names.stored
        computed, reading = with_values_apart(source.of([part]), known, made, taken)
        kept += source.instead(statement, part, computed)
        (shows,) = ast.parse(reading).body
        shown.append(ast.increment_lineno(shows, part.lineno - shows.lineno) if computed else part)
        code += reading
    return kept, shown, code


def _shown_inside(statement: ast.stmt, later: Names, reads: set[int]) -> ast.stmt | None:
    """The last statement of a block without gradients that only shows values: they need no gradients outside."""
    if not isinstance(statement, ast.With) or len(statement.body) < 2:
        return None
    if not called(statement) & MODES:
        return None
    last = statement.body[-1]
    return last if _is_free_of(last, later) and _is_shown(last, reads) else None


def _bound_to_next(statements: Sequence[ast.stmt], text: str) -> frozenset[str]:
    """Variables that are the next step's batch after the step, and the last one's in its function."""
    taken = _names_in(statements)
    drawn = (drawn_first(statement, text, taken) for statement in statements)
    return next((each.bound for each in drawn if each is not None), frozenset())


def _names_in(statements: Iterable[ast.stmt]) -> set[str]:
    return {n.id for s in statements for n in ast.walk(s) if isinstance(n, ast.Name)}


def _is_free_of(statement: ast.stmt, later: Names) -> bool:
    names = Names([statement])
    return not names.stored & later.loaded and not names.loaded & later.stored


def _without_prepared(
    statements: Sequence[ast.stmt], batch: AbstractSet[str]
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements without those that only bring values to the GPU, and these.

    Copies of `batch` stay, where nothing of these depends on them: a captured step makes them without waiting.
    """
    rest: list[ast.stmt] = []
    prepared: list[ast.stmt] = []
    for statement in statements:
        names, earlier = Names([statement]), Names(rest)
        is_free = not names.loaded & earlier.stored and not names.stored & (
            earlier.loaded | earlier.stored
        )
        is_assigned = isinstance(statement, (ast.Assign, ast.AnnAssign))
        calls = called(statement)
        prepares = is_assigned and bool(calls & _BRINGS) and calls <= _PREPARES
        (prepared if is_free and prepares else rest).append(statement)
    later: list[ast.stmt] = []
    for statement in reversed(prepared):
        if not only_copies(statement, batch) or not _is_free_of(statement, Names(later)):
            later.insert(0, statement)
    prepared = later
    return [each for each in statements if each not in prepared], prepared


def _with_items_first(
    statements: Sequence[ast.stmt],
    prepared: Sequence[ast.stmt],
    batch: AbstractSet[str],
    source: _Source,
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """With `x = batch["x"]` prepared and `x = x.to(device)` left of `x = batch["x"].to(device)`.

    The step would take the whole batch else, which may hold other things that vary, such as the names of files.
    """
    rest, first = list[ast.stmt](), [*prepared]
    for statement in statements:
        code = source.of([statement]) if only_copies(statement, batch) else ""
        found = [each for own in ast.parse(code).body for each in copies_in(own, batch)]
        items = [(name, item) for name, item in found if isinstance(item, ast.Subscript)]
        earlier, read = Names(rest), Names(ast.Expr(item) for _, item in items).loaded
        is_free = {name for name, _ in items}.isdisjoint(earlier.loaded | earlier.stored)
        is_free = is_free and read <= batch - earlier.stored
        if not items or not is_free or any(n.lineno != n.end_lineno for _, n in items):
            rest.append(statement)
            continue
        places = [(n.lineno, n.col_offset, n.end_col_offset or 0, name) for name, n in items]
        texts = [f"{name} = {source_segment(code, item)}\n" for name, item in items]
        for into, text in (*((first, each) for each in texts), (rest, with_places(code, places))):
            (made,) = ast.parse(text).body
            ast.increment_lineno(made, statement.lineno - made.lineno)
            source.codes[made], source.origins[made] = text, statement
            into.append(made)
    return rest, first


def _groups(statements: Sequence[ast.stmt], reads: set[int], source: _Source) -> Iterable[Group]:
    """One group, but for last branches that step an optimizer or update parameters, which stay branches.

    Each of these is a group of its own, and so is what updates parameters after one.
    """
    functions, start = functions_of(source.text), len(statements)
    while start and (_steps(statements[start - 1]) or updates(statements[start - 1], functions)):
        start -= 1
    while start < len(statements) and not _is_branch(statements[start]):
        start += 1
    if not any("step" in called(each) for each in statements[:start]):
        start = len(statements)
    yield _group(statements[:start], source)
    for is_branch, several in groupby(statements[start:], _is_branch):
        if not is_branch:
            yield _group([*several], source)
            continue
        for branch in several:
            assert isinstance(branch, ast.If)
            rest, shown, after = _without_shown(branch.body, reads, source)
            test = ast.get_source_segment(source.text, branch.test)
            group = _group(rest, source)
            above = source.blank_above(branch) + source.comments(branch)
            yield replace(group, above=above, test=test, shown=tuple(shown), after=after)


def _is_branch(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and not statement.orelse


def _steps(branch: ast.stmt) -> bool:
    return _is_branch(branch) and "step" in called(branch)


def functions_of(text: str) -> dict[str, ast.FunctionDef]:
    return {n.name: n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)}


def updates(
    statement: ast.stmt, functions: Mapping[str, ast.FunctionDef], *, inside: bool = False
) -> bool:
    """Whether it only changes tensors in place, in loops over them: in the step, or in a function of its file."""
    if inside and isinstance(statement, ast.Assign):
        return called(statement) <= _NAMES_TENSORS
    if isinstance(statement, ast.Expr):
        return _is_in_place(statement) if inside else _calls_updates(statement, functions)
    if isinstance(statement, ast.If):
        is_block = not statement.orelse and not called(statement.test) & READS
    elif isinstance(statement, ast.For):
        inside = True
        is_block = not statement.orelse and not isinstance(statement.body[-1], ast.Assign)
    elif isinstance(statement, ast.With):
        is_block = called(statement.items[0].context_expr) == {"no_grad"}
    else:
        return False
    return is_block and all(updates(s, functions, inside=inside) for s in statement.body)


def _calls_updates(statement: ast.Expr, functions: Mapping[str, ast.FunctionDef]) -> bool:
    call = statement.value
    function = functions.get(last_name(call.func)) if isinstance(call, ast.Call) else None
    body = function.body if function is not None else []
    if function is not None and ast.get_docstring(function) is not None:
        body = body[1:]
    has_work = bool(body) and not isinstance(body[-1], ast.Assign)
    return has_work and all(updates(each, {}, inside=True) for each in body)


def _is_in_place(statement: ast.stmt) -> bool:
    """Whether it only calls a method such as `mul_()`, without a look from the host."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or called(call) & (READS | _SHOWS):
        return False
    name = last_name(call.func)
    return name.endswith("_") and not name.startswith("_")


def _group(statements: Sequence[ast.stmt], source: _Source) -> Group:
    origin = tuple(source.origins.get(each, each) for each in statements)
    return Group(origin, tuple(statements), _kept_on_device(source.of(statements)))


def _kept_on_device(code: str) -> str:
    """`x = y.item()` as `x = y.detach()`, a tensor without dimensions of the same value."""
    reads = [*assigned_reads(ast.parse(code))]
    ends = ((each.end_lineno or 0, each.end_col_offset or 0) for each in reads)
    return with_places(code, [(line, end - len("item()"), end, "detach()") for line, end in ends])


def assigned_reads(*nodes: ast.AST) -> Iterator[ast.Call]:
    """`y.item()` of each `x = y.item()`."""
    for node in (n for each in nodes for n in ast.walk(each) if isinstance(n, ast.Assign)):
        call = node.value
        if isinstance(call, ast.Call) and ast.unparse(call).endswith(".item()"):
            yield call


def with_attributes_apart(
    group: Group, objects: set[str], held: Container[str] = ()
) -> tuple[Group, dict[str, str]]:
    """The group with a name for each `object.attribute`, and the attribute behind each new name.

    Only of objects of which the group takes nothing but attributes that are values: `config.clip`, and
    `self.optimizer` of `self.optimizer.step()`, but nothing of `model.zero_grad()`. What is called is no
    method if it is one of `held`, such as `self.model` of `self.model(x)`.
    """
    tree = ast.parse(group.code)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    uses: dict[str, list[ast.Attribute]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in objects:
            part = parents[node]
            if not isinstance(part, ast.Attribute) or not _is_value(part, parents, held):
                objects = objects - {node.id}
            else:
                uses.setdefault(node.id, []).append(part)
    taken = group.names.loaded | group.names.stored
    stands_for: dict[str, str] = {}
    places: list[Place] = []
    for holder in sorted(objects & {*uses}):
        for part in uses[holder]:
            name = f"{holder}_{part.attr}" if part.attr in taken else part.attr
            if stands_for.setdefault(name, f"{holder}.{part.attr}") != f"{holder}.{part.attr}":
                return group, {}
            places.append((part.lineno, part.col_offset, part.end_col_offset or 0, name))
    return replaced(group, places), stands_for


def with_inputs_apart(group: Group, varying: set[str]) -> tuple[Group, dict[str, str]]:
    """The group with a name for what brings values of the host to the GPU, and the expression behind each name.

    `torch.Tensor(obs).to(device)` reads `obs` while it is captured, and a replay has the tensor of that call.
    """
    names = group.names
    free = names.early - names.stored
    brought: dict[str, str] = {}
    places: list[Place] = []
    waiting: list[ast.AST] = [*ast.parse(group.code).body]
    while waiting:
        node = waiting.pop(0)
        if not isinstance(node, ast.Call) or not _makes_tensor(node, free):
            waiting += () if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node)
            continue
        expression = source_segment(group.code, node)
        own = sorted(Names([ast.Expr(node)]).loaded & varying)
        known = (name for name, each in brought.items() if each == expression)
        name = next(known, own[0] if len(own) == 1 else "noise" if called(node) & _DRAWS else "")
        if not name:
            continue
        places.append((node.lineno, node.col_offset, node.end_col_offset or 0, name))
        if brought.setdefault(name, expression) != expression:
            return group, {}
    made = replaced(group, places)
    uses = Counter(n.id for s in made.statements for n in ast.walk(s) if isinstance(n, ast.Name))
    is_clear = all(uses[name] == count for name, count in Counter(p[3] for p in places).items())
    return (made, brought) if is_clear else (group, {})


def _makes_tensor(call: ast.Call, free: set[str]) -> bool:
    """Whether it only makes a tensor of what the host has before the group runs, on one line."""
    is_made = bool(called(call) & MAKES_TENSOR) and called(call) <= _PREPARES - {"next", "item"}
    is_free = Names([ast.Expr(call)]).loaded <= free
    return is_made and is_free and call.lineno == call.end_lineno


def draws_tensor(value: ast.expr) -> bool:
    """Whether an expression only makes a tensor of numbers that the host draws."""
    calls = called(value)
    return bool(calls & MAKES_TENSOR and calls & _DRAWS) and calls <= _PREPARES - {"next", "item"}


def replaced(group: Group, places: Iterable[Place]) -> Group:
    """The group with names in place of parts of lines."""
    code = with_places(group.code, places)
    return group.with_code(code)


def _is_value(part: ast.Attribute, parents: dict[ast.AST, ast.AST], held: Container[str]) -> bool:
    """Whether an attribute on one line is read or bound, and not a method, nor shown in a text."""
    node: ast.AST | None = part
    while node is not None:
        if isinstance(node, ast.JoinedStr):
            return False
        node = parents.get(node)
    above = parents[part]
    is_called = isinstance(above, ast.Call) and above.func is part
    is_method = is_called and ast.unparse(part) not in held
    return not is_method and part.lineno == part.end_lineno and not isinstance(part.ctx, ast.Del)


def called(node: ast.AST) -> set[str]:
    """The last name of everything that is called."""
    return {last_name(each.func) for each in calls_in(node)}


def _is_shown(statement: ast.stmt, reads: set[int]) -> bool:
    """Whether it reads values on the host or shows them, and does no work of the step."""
    calls = called(statement)
    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    is_host = bool(calls & (_SHOWS | {"item", "tolist"})) or not reads.isdisjoint(lines)
    is_host = is_host or _is_of_numpy(statement)
    has_block = any(isinstance(n, ast.With) for n in ast.walk(statement))
    return is_host and not calls & _TRAINS and not has_block and not leaves([statement])


def _sets_rate(statement: ast.stmt, statements: Sequence[ast.stmt], reads: set[int]) -> bool:
    """Whether it is `scheduler.step(loss)`, as of ReduceLROnPlateau, which reads a value of the step on the host."""
    match statement:
        case ast.Expr(ast.Call(func=ast.Attribute(attr="step"), args=[value], keywords=[])):
            assigned = Names([each for each in statements if isinstance(each, ast.Assign)]).stored
            is_value = isinstance(value, ast.Name) and value.id in assigned
            return is_value and statement.lineno in reads
    return False


def _counts(statement: ast.stmt, all_statements: Sequence[ast.stmt]) -> bool:
    """Whether it adds to a variable what no other statement of the step makes, as `seen += x.size(0)` does."""
    if not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, ast.Name):
        return False
    made = Names([each for each in all_statements if each is not statement]).stored
    counted = _WithoutShapes().visit(copy.deepcopy(statement))
    return not called(counted) and not Names([counted]).loaded & made


def without_sizes(statements: Iterable[ast.stmt], tensors: AbstractSet[str]) -> list[ast.stmt]:
    """The statements with a number instead of each size of these variables."""
    return [_WithoutShapes(tensors).visit(copy.deepcopy(each)) for each in statements]


class _WithoutShapes(ast.NodeTransformer):
    """An expression with a number instead of each size of a tensor, or of those in some variables."""

    def __init__(self, tensors: AbstractSet[str] | None = None) -> None:
        self._tensors = tensors

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_size = last_name(node.func) in ("size", "len", "numel") and len([*calls_in(node)]) == 1
        return ast.Constant(1) if is_size and self._is_meant(node) else self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        is_size = node.attr == "shape" and self._is_meant(node.value)
        return ast.Constant(1) if is_size else self.generic_visit(node)

    def _is_meant(self, node: ast.expr) -> bool:
        return self._tensors is None or Names([ast.Expr(node)]).loaded <= {*self._tensors, "len"}


def _is_of_numpy(statement: ast.stmt) -> bool:
    """Whether it calls functions of NumPy and nothing else, and draws no numbers."""
    functions = [ast.unparse(n.func) for n in ast.walk(statement) if isinstance(n, ast.Call)]
    is_numpy = all(each.startswith(("np.", "numpy.")) for each in functions)
    return bool(functions) and is_numpy and not any(".random." in each for each in functions)


def leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether a `return`, or a `break` or `continue` of a loop around them, is among them."""
    inside = walk_until(statements, is_scope)
    own = walk_until(statements, lambda n: is_scope(n) or isinstance(n, (ast.For, ast.While)))
    is_left = any(isinstance(node, (ast.Break, ast.Continue)) for node in own)
    return is_left or any(isinstance(node, ast.Return) for node in inside)


class _Source:
    """The source of statements with the comments above them, at the left margin.

    `codes` has the source of statements that were changed, `origins` what they are in the file.
    """

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self._lines = self.text.split("\n")
        self.codes: dict[ast.stmt, str] = {}
        self.origins: dict[ast.stmt, ast.stmt] = {}

    def of(self, statements: Sequence[ast.stmt]) -> str:
        """Raises NoProposal for a text of several lines, which would change with its margin."""
        return "".join(
            self._one(each, is_first=number == 0) for number, each in enumerate(statements)
        )

    def _one(self, statement: ast.stmt, *, is_first: bool) -> str:
        if statement in self.codes:
            blank = "" if is_first else self.blank_above(self.origins[statement])
            return blank + self.codes[statement]
        strings = (n for n in ast.walk(statement) if isinstance(n, (ast.Constant, ast.JoinedStr)))
        if any((n.end_lineno or n.lineno) > n.lineno for n in strings):
            raise NoProposal(f"line {statement.lineno} has a text of several lines")
        if not self._has_own_lines(statement):
            return (ast.get_source_segment(self.text, statement) or "") + "\n"
        blank = "" if is_first else self.blank_above(statement)
        return blank + self.comments(statement) + self._dedented(statement, [])

    def instead(self, statement: ast.stmt, part: ast.stmt, code: str) -> list[ast.stmt]:
        """A statement with assignments instead of a part, which may be all of it."""
        made = ast.parse(code).body
        if part is not statement:
            kept = copy.copy(statement)
            assert isinstance(statement, ast.With) and isinstance(kept, ast.With)
            kept.body = [*(each for each in statement.body if each is not part), *made]
            first = part.lineno - len(self._comment_lines(part))
            own = self._dedented(statement, range(first, (part.end_lineno or part.lineno) + 1))
            margin = " " * (part.col_offset - statement.col_offset)
            self.codes[kept] = self.comments(statement) + own + textwrap.indent(code, margin)
            self.origins[kept] = statement
            return [kept]
        for each, line in zip(made, code.splitlines(keepends=True), strict=True):
            self.codes[each], self.origins[each] = line, statement
        return made

    @property
    def imported(self) -> set[str]:
        """The names that the file imports."""
        imports = (ast.Import, ast.ImportFrom)
        return Names(n for n in ast.walk(ast.parse(self.text)) if isinstance(n, imports)).stored

    def comments(self, statement: ast.stmt) -> str:
        """The lines of comments just above a statement."""
        return "".join(line.lstrip() + "\n" for line in self._comment_lines(statement))

    def _comment_lines(self, statement: ast.stmt) -> list[str]:
        found: list[str] = []
        for line in reversed(self._lines[: statement.lineno - 1]):
            if not line.lstrip().startswith("#"):
                break
            found.insert(0, line)
        return found

    def blank_above(self, statement: ast.stmt) -> str:
        line = statement.lineno - len(self._comment_lines(statement)) - 1
        return "\n" if line > 0 and not self._lines[line - 1].strip() else ""

    def _dedented(self, statement: ast.stmt, left_out: Sequence[int]) -> str:
        last = (statement.end_lineno or statement.lineno) + 1
        kept = (number for number in range(statement.lineno, last) if number not in left_out)
        return "".join(self._lines[n - 1][statement.col_offset :] + "\n" for n in kept)

    def _has_own_lines(self, statement: ast.stmt) -> bool:
        """Whether nothing else stands on its lines."""
        before = self._lines[statement.lineno - 1].encode()[: statement.col_offset]
        last = self._lines[(statement.end_lineno or statement.lineno) - 1].encode()
        after = last[statement.end_col_offset :].strip()
        return not before.strip() and (not after or after.startswith(b"#"))
