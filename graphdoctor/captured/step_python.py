"""Runs the Python of a step with each replay: the numbers that it changes, and its branches on them.

A replay runs no Python. `self.it += 1`, `if self.it % 2 == 0:` and `scheduler.step()` in the step's own
function are cut out of it and compiled: `PythonPart.look` decides which graph a call takes, and
`PythonPart.commit` does to the numbers and schedules what the step would have done.
"""

from __future__ import annotations

import ast
import copy
import dis
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import CellType, CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar

import torch

from graphdoctor.source.trees import is_scope, tree_of, walk_until
from graphdoctor.target.frames import is_machinery, is_own
from graphdoctor.target.state.variables import cells_of, is_user_class, loads_method
from graphdoctor.target.user_code import is_user_file

_NUMBERS = (bool, int, float)
_PURE = (
    ast.Constant,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)
_PURE_CALLS = frozenset({"min", "max", "int", "float", "bool", "abs", "round"})
_READ_OF_SCHEDULES = frozenset({"get_last_lr", "last_epoch", "_last_lr", "get_lr"})
Numbers = tuple[object, ...]
_Found = TypeVar("_Found")


class Seen(NamedTuple):
    """What the Python of one call does: the branches it takes, its numbers afterwards, its schedules' steps."""

    branches: tuple[bool, ...]
    numbers: Numbers
    schedules: tuple[int, ...]

    @property
    def ways(self) -> tuple[object, ...]:
        """What calls of one graph have in common."""
        return self.branches, self.schedules


class Unsupported(Exception):
    """The Python of a step cannot be separated from its GPU work; the message says why."""


@dataclass(frozen=True, slots=True)
class PythonPart:
    """The Python of one step, compiled. `names` are those that other code must not read."""

    look: Callable[..., Seen]
    read: Callable[..., Numbers]
    write: Callable[..., None]
    schedules: tuple[torch.optim.lr_scheduler.LRScheduler, ...]
    names: frozenset[str]
    code: CodeType

    def with_numbers(
        self,
        numbers: Numbers,
        check: Callable[[], _Found],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> _Found:
        """What a check returns while the numbers have these values."""
        now = self.read(*args, **kwargs)
        try:
            self.write(numbers, *args, **kwargs)
            return check()
        finally:
            self.write(now, *args, **kwargs)

    def commit(self, seen: Seen, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Leave the numbers and schedules as the step would."""
        self.write(seen.numbers, *args, **kwargs)
        for place in seen.schedules:
            self.schedules[place].step()

    @contextmanager
    def standing(
        self, numbers: Numbers, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Iterator[None]:
        """Give the numbers these values, now and after the block, in which schedules do not move."""
        self.write(numbers, *args, **kwargs)
        for schedule in self.schedules:
            vars(schedule)["step"] = _stand_still
        try:
            yield
        finally:
            for schedule in self.schedules:
                del vars(schedule)["step"]
            self.write(numbers, *args, **kwargs)


def _stand_still() -> None:
    """The schedule moves after the replay."""


class CodeSeen:
    """The user's functions that ran in eager calls of the step, in the thread of the caller."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.reached: set[CodeType] = set()
        self.is_complete = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        if sys.getprofile() is not None:
            self.is_complete = False
            yield
            return
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.codes.add(frame.f_code)

    def reader_of(self, names: frozenset[str], *, without: CodeType) -> str:
        """The name of a function that mentions one of the names; "" if there is none."""
        for code in self.codes:
            if code is without or is_machinery(code.co_filename):
                continue
            if _mentions(code, names):
                return code.co_qualname
        return ""

    def may_read(self, name: str, cls: type) -> bool:
        """Whether a function may read a number in this attribute of an object of a class.

        Functions are those that ran, and those `reached`, such as hooks. Torch's and Python's own only know the
        attributes of classes that are derived from theirs.
        """
        is_derived = not all(map(is_user_class, cls.__mro__[:-1]))
        every = (
            c for c in self.codes | self.reached if is_derived or not is_machinery(c.co_filename)
        )
        return self._may_mention(name, every)

    def reads_gradients(self) -> bool:
        """Whether the user's or torch's code may read gradients of tensors."""
        every = (c for c in self.codes | self.reached if not is_own(c.co_filename))
        return self._may_mention("grad", every)

    def _may_mention(self, name: str, codes: Iterable[CodeType]) -> bool:
        return not self.is_complete or any(_mentions(code, frozenset({name})) for code in codes)

    def copies_unblocked(self) -> bool:
        """Whether the user's code copies with `non_blocking`, and so minds when it writes to pinned memory."""
        users = (code for code in self.codes if is_user_file(code.co_filename))
        names = (const for code in users for const in code.co_consts if isinstance(const, tuple))
        return any("non_blocking" in each for each in names)

    def reads_schedule(self) -> bool:
        """Whether the user's code reads how far a schedule is, which no graph and no guard has."""
        users = (code for code in self.codes if not is_machinery(code.co_filename))
        return any(not _READ_OF_SCHEDULES.isdisjoint(code.co_names) for code in users)


def _mentions(code: CodeType, names: frozenset[str]) -> bool:
    """Whether code mentions a number of one of the names: `optimizer.step()` calls a method, and no number."""
    if not names.isdisjoint((*code.co_freevars, *_texts(code))):
        return True
    if names.isdisjoint(code.co_names):
        return False
    named = (each for each in dis.get_instructions(code) if each.opcode in dis.hasname)
    return any(each.argval in names and not loads_method(each) for each in named)


def _texts(code: CodeType) -> Iterator[str]:
    return (const for const in code.co_consts if isinstance(const, str))


def python_part(
    step: Callable[..., object], args: Sequence[object] = (), kwargs: Mapping[str, object] = {}
) -> PythonPart | None:
    """The Python of the step that has to run beside replays; None if there is none.

    The arguments are those of its first call: a schedule among them is that of each call. Raises `Unsupported`.
    """
    function = step.__func__ if isinstance(step, MethodType) else step
    if not isinstance(function, FunctionType):
        return None
    owner = _source_of(function)
    if owner is None:
        return None
    this = step.__self__ if isinstance(step, MethodType) else None
    names = [each.arg for each in (*owner.args.posonlyargs, *owner.args.args)]
    given = dict(zip(names[isinstance(step, MethodType) :], args, strict=False))
    return _Slice(function, owner, this, {**given, **kwargs}).compiled()


def _source_of(function: FunctionType) -> ast.FunctionDef | None:
    code = function.__code__
    tree = tree_of(code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min((each.lineno for each in node.decorator_list), default=node.lineno)
            if code.co_firstlineno in (first, node.lineno):
                return node
    return None


class _Slice:
    """The statements of one function that decide about its numbers and schedules."""

    def __init__(
        self,
        function: FunctionType,
        owner: ast.FunctionDef,
        this: object,
        given: Mapping[str, object],
    ) -> None:
        self._function, self._owner, self._this, self._given = function, owner, this, given
        arguments = owner.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        self._parameters = {each.arg for each in every}
        self._cells = cells_of(function)
        self._shared = _declared(owner)  # by `global` and `nonlocal`
        self._assigned = _assigned(owner)
        self._numbers: dict[str, ast.expr] = {}  # by their text
        self._schedules: dict[str, Any] = {}
        self._locals: set[str] = set()  # computed from numbers
        self._has_ended = False  # a schedule has moved

    def compiled(self) -> PythonPart | None:
        for target in _targets(self._owner):
            if self._is_number(target):
                self._numbers.setdefault(ast.unparse(target), target)
        for call in _statements_of(self._owner):
            if (schedule := self._schedule_of(call)) is not None:
                self._schedules[ast.unparse(call.func)] = schedule
        if not self._numbers and not self._schedules:
            return None
        if self._owner.args.vararg or self._owner.args.kwarg:
            raise Unsupported("it takes *args or **kwargs")
        body = self._block(self._owner.body)
        return self._made(body)

    # Values before the first call.

    def _value(self, node: ast.expr) -> Any:
        """What an expression of names and attributes is now; None if that cannot be known."""
        try:
            if isinstance(node, ast.Name):
                return self._named(node.id)
            if isinstance(node, ast.Attribute):
                return getattr(self._value(node.value), node.attr, None)
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                return self._value(node.value)[node.slice.value]
        except (LookupError, TypeError, ValueError):
            pass
        return None

    def _named(self, name: str) -> Any:
        arguments = (*self._owner.args.posonlyargs, *self._owner.args.args)
        if self._this is not None and arguments and name == arguments[0].arg:
            return self._this
        if name in self._parameters or (name in self._assigned and name not in self._shared):
            return None
        if name in self._cells:
            return self._cells[name].cell_contents
        return self._function.__globals__.get(name)

    def _is_number(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Name) and target.id not in self._shared:
            return False
        return type(self._value(target)) in _NUMBERS

    def _schedule_of(self, call: ast.Call) -> Any:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            return None
        holder = call.func.value
        is_given = isinstance(holder, ast.Name) and holder.id not in self._assigned
        value = self._given.get(ast.unparse(holder)) if is_given else None
        value = value if value is not None else self._value(holder)
        inner = _prepared_schedule(value)
        if isinstance(inner, torch.optim.lr_scheduler.ReduceLROnPlateau):
            return None
        return value if isinstance(inner, torch.optim.lr_scheduler.LRScheduler) else None

    # Statements.

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [made for each in statements for made in self._statement(each)]

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            return self._assignment(node)
        if isinstance(node, ast.If):
            return self._branch(node)
        if isinstance(node, ast.Return):
            self._check_unread(node.value)
            return [ast.Return(ast.Name("_done", ast.Load()))]
        if isinstance(node, ast.With):
            for item in node.items:
                self._check_unread(item)
            return self._block(node.body)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            text = ast.unparse(node.value.func)
            if text in self._schedules:
                if node.value.args or node.value.keywords:
                    raise Unsupported(f"{text}() gets arguments")
                self._has_ended = True
                place = list(self._schedules).index(text)
                assert isinstance(node.value.func, ast.Attribute)
                held = ast.unparse(self._rewritten(node.value.func.value))
                return ast.parse(f"_moved.append(_known({place}, {held}))").body
        self._check_unread(node)
        if self._has_ended and ".step(" in ast.unparse(node):
            raise Unsupported(f"`{ast.unparse(node)}` runs after a schedule has moved")
        return []

    def _assignment(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> list[ast.stmt]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        text = ast.unparse(targets[0])
        is_state = text in self._numbers
        if isinstance(node, ast.AnnAssign) or len(targets) != 1 or value is None:
            self._check_unread(node)
            return []
        is_local = isinstance(targets[0], ast.Name) and not is_state
        if is_local and self._reads(value) and self._is_pure(value):
            self._locals.add(text)
        elif is_local and text in self._locals:
            raise Unsupported(f"{text} is assigned twice")
        elif not is_state:
            self._check_unread(node)
            if any(isinstance(each, ast.Call) for each in ast.walk(value)):
                self._check_no_step(node)
            return []
        if not self._is_pure(value):
            raise Unsupported(f"`{ast.unparse(node)}` computes it from other values")
        return [self._rewritten(node)]

    def _check_no_step(self, node: ast.stmt) -> None:
        if self._has_ended and ".step(" in ast.unparse(node):
            raise Unsupported(f"`{ast.unparse(node)}` runs after a schedule has moved")

    def _branch(self, node: ast.If) -> list[ast.stmt]:
        has_ended = self._has_ended
        body = self._block(node.body)
        ended_in_body, self._has_ended = self._has_ended, has_ended
        orelse = self._block(node.orelse)
        self._has_ended |= ended_in_body
        if not body and not orelse and not self._reads(node.test):
            return []
        if not self._is_pure(node.test):
            raise Unsupported(f"`if {ast.unparse(node.test)}:` depends on more than numbers")
        test = ast.Call(
            ast.Name("_took", ast.Load()),
            [ast.Name("_branches", ast.Load()), self._rewritten(node.test)],
            [],
        )
        return [ast.If(test, body or [ast.Pass()], orelse)]

    # Expressions.

    def _is_read(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._locals or node.id in self._numbers
        is_place = isinstance(node, (ast.Attribute, ast.Subscript))
        return is_place and bool(self._numbers) and ast.unparse(node) in self._numbers

    def _reads(self, node: ast.AST) -> bool:
        return any(map(self._is_read, ast.walk(node)))

    def _check_unread(self, node: ast.AST | None) -> None:
        for each in ast.walk(node) if node is not None else ():
            if self._is_read(each):
                raise Unsupported(f"`{ast.unparse(each)}` is used for more than branches")
            if isinstance(each, ast.Call) and ast.unparse(each.func) in self._schedules:
                raise Unsupported(
                    f"{ast.unparse(each.func)}() is called in a loop or an expression"
                )

    def _is_pure(self, node: ast.AST) -> bool:
        """Whether it only computes with numbers and with the step's arguments."""
        if self._is_read(node):
            return True
        if isinstance(node, ast.Name):
            if node.id in self._parameters:
                return node.id not in self._assigned
            return isinstance(self._value(node), (*_NUMBERS, str, type(None))) and (
                node.id in self._cells or node.id in self._function.__globals__
            )
        if isinstance(node, ast.Attribute):
            return isinstance(self._value(node), (*_NUMBERS, str))
        if isinstance(node, ast.Call):
            is_known = isinstance(node.func, ast.Name) and node.func.id in _PURE_CALLS
            return is_known and not node.keywords and all(map(self._is_pure, node.args))
        return isinstance(node, _PURE) and all(map(self._is_pure, ast.iter_child_nodes(node)))

    def _rewritten(self, node: Any) -> Any:
        return _Rewrite(list(self._numbers), self._cells).visit(copy.deepcopy(node))

    def _made(self, body: list[ast.stmt]) -> PythonPart:
        places = [_Rewrite([], self._cells).visit(copy.deepcopy(n)) for n in self._numbers.values()]
        texts = [ast.unparse(place) for place in places]
        parameters = copy.deepcopy(self._owner.args)
        parameters.defaults = [ast.Constant(None) for _ in parameters.defaults]
        parameters.kw_defaults = [d and ast.Constant(None) for d in parameters.kw_defaults]
        for each in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs):
            each.annotation = None
        head = ast.unparse(parameters)
        shared = [n for n in self._shared if n not in self._cells and n in self._numbers]
        declared = f"    global {', '.join(shared)}\n" if shared else ""
        numbers = ", ".join(f"_number{place}" for place in range(len(texts)))
        numbers = f"({numbers}{',' if texts else ''})"
        lines = [
            f"def _look({head}):",
            "    _branches, _moved = [], []",
            *(f"    _number{place} = {text}" for place, text in enumerate(texts)),
            "    pass",
            f"    return _Seen(tuple(_branches), {numbers}, tuple(_moved))",
            f"def _read({head}):",
            f"    return ({', '.join(texts)}{',' if texts else ''})",
            f"def _write(_values, {head}):",
            declared + "    pass",
            *(f"    {text} = _values[{place}]" for place, text in enumerate(texts)),
        ]
        module = ast.parse("\n".join(lines))
        looks: Any = module.body[0]
        ending = looks.body.pop()
        ended = [_End(ending).visit(each) for each in body]
        looks.body[-1:] = [*ended, ending]
        outer: Any = ast.parse(
            f"def _make(_Seen, _took, _known, {', '.join(map(_cell_name, self._cells))}):\n"
            "    return _look, _read, _write"
        )
        outer.body[0].body[:0] = module.body
        made: dict[str, Any] = {}
        code = compile(ast.fix_missing_locations(outer), "<Python of a captured step>", "exec")
        exec(code, self._function.__globals__, made)
        known = _KnownSchedules(tuple(self._schedules.values()))
        functions = made["_make"](Seen, _took, known.place, *self._cells.values())
        for each in functions:
            each.__defaults__ = self._function.__defaults__
            each.__kwdefaults__ = self._function.__kwdefaults__
        look, read, write = functions
        if self._this is not None:
            look, read = partial(look, self._this), partial(read, self._this)
            write = _method_write(write, self._this)
        names = frozenset(map(_last_name, self._numbers.values()))
        return PythonPart(
            look, read, write, tuple(self._schedules.values()), names, self._function.__code__
        )


class _KnownSchedules(NamedTuple):
    """The schedules of the step's first call."""

    schedules: tuple[object, ...]

    def place(self, place: int, schedule: object) -> int:
        """The place of a schedule that moves. Raises `Unsupported` if the first call had another schedule."""
        if schedule is not self.schedules[place]:
            raise Unsupported("the call has another schedule than the first one")
        return place


def _prepared_schedule(value: Any) -> Any:
    """The schedule behind `accelerator.prepare(schedule)`; the value if it is none of Accelerate's.

    With a GradScaler, Accelerate moves the schedule only if the optimizer stepped, which the GPU knows: None.
    """
    if type(value).__module__ != "accelerate.scheduler":
        return value
    is_scaled = any(getattr(each, "scaler", None) is not None for each in value.optimizers)
    return None if is_scaled else value.scheduler


def _method_write(write: Callable[..., None], this: object) -> Callable[..., None]:
    return lambda numbers, *args, **kwargs: write(numbers, this, *args, **kwargs)


def _took(branches: list[bool], test: object) -> bool:
    """Note which way a branch goes."""
    branches.append(bool(test))
    return branches[-1]


def _cell_name(name: str) -> str:
    return f"_cell_{name}"


def _last_name(place: ast.expr) -> str:
    """The name by which other code would read a number."""
    if isinstance(place, ast.Attribute):
        return place.attr
    if isinstance(place, ast.Subscript) and isinstance(place.slice, ast.Constant):
        return str(place.slice.value)
    assert isinstance(place, ast.Name)
    return place.id


class _Rewrite(ast.NodeTransformer):
    """Numbers become local variables, and variables of enclosing functions are read from their cells."""

    def __init__(self, numbers: list[str], cells: Mapping[str, CellType]) -> None:
        self._numbers, self._cells = numbers, cells

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            text = ast.unparse(node)
            if text in self._numbers:
                return ast.Name(f"_number{self._numbers.index(text)}", node.ctx)
            if isinstance(node, ast.Name) and node.id in self._cells:
                cell = ast.Name(_cell_name(node.id), ast.Load())
                return ast.Attribute(cell, "cell_contents", node.ctx)
        return self.generic_visit(node)


class _End(ast.NodeTransformer):
    """A `return` of the step ends its Python, too."""

    def __init__(self, ending: ast.stmt) -> None:
        self._ending = ending

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        return copy.deepcopy(self._ending)


def _own_nodes(owner: ast.FunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions and classes in it."""
    return walk_until(owner.body, is_scope)


def _targets(owner: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in _own_nodes(owner):
        if isinstance(node, ast.Assign):
            yield from node.targets
        elif isinstance(node, ast.AugAssign):
            yield node.target


def _statements_of(owner: ast.FunctionDef) -> Iterator[ast.Call]:
    """Calls that are statements."""
    for node in _own_nodes(owner):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node.value


def _declared(owner: ast.FunctionDef) -> frozenset[str]:
    found = (n.names for n in _own_nodes(owner) if isinstance(n, (ast.Global, ast.Nonlocal)))
    return frozenset(name for names in found for name in names)


def _assigned(owner: ast.FunctionDef) -> frozenset[str]:
    names = (n for n in _own_nodes(owner) if isinstance(n, ast.Name))
    return frozenset(n.id for n in names if isinstance(n.ctx, ast.Store))
