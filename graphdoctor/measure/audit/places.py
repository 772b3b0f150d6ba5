"""Finds the variables and attributes that held the tensors and numbers of a capture, to read them again later."""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import CodeType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple
from weakref import ref

import torch

from graphdoctor.device.observe.storages import Geometry
from graphdoctor.graphs.guards.guard import HOLDERS
from graphdoctor.source.trees import owner_of, tree_of
from graphdoctor.target.frames import frame_of_engine, is_machinery, is_own, variables_of
from graphdoctor.target.state.attributes import attributes, slots_of
from graphdoctor.target.state.kinds.kind import MISSING, Visit
from graphdoctor.target.state.walk import Walk

_CONTAINERS = (dict, list, tuple)
_CODE = (ModuleType, FunctionType, type)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (abs, float, int, max, min, pow, round)
}
_MOST_FRAMES = 40  # of one operator, torch's included
_MOST_USERS = 8  # frames whose variables are looked through
_MOST_VISITS = 200_000  # objects that variables lead to: a vocabulary has more, and takes seconds
_DEEPEST = 4  # containers in each other
_MOST_STEPS = 3  # from a variable to the assignment that it got its number from


class Item(NamedTuple):
    """A constant index or key."""

    key: str | int


class Variable(NamedTuple):
    """A local variable of a function, which is there while the function runs."""

    code: CodeType
    name: str


Step = str | Item
Root = ref[Any] | dict[str, Any] | Variable
Key = tuple[int, tuple[Step, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where the program keeps a value: an object, the globals of a file or a variable, and the way from there."""

    root: Root
    path: tuple[Step, ...]
    text: str

    @property
    def key(self) -> Key:
        """Equal for equal places, while their roots live."""
        root = self.root
        if isinstance(root, Variable):
            return id(root.code), (root.name, *self.path)
        return id(root() if isinstance(root, ref) else root), self.path

    def read(self, frames: list[FrameType]) -> object:
        """What is there now; MISSING if the object died, or its function is not one of the frames'."""
        root = self.root
        value: object
        if isinstance(root, ref):
            value = root()
            if value is None:
                return MISSING
        elif isinstance(root, Variable):
            frame = next((each for each in frames if each.f_code is root.code), None)
            value = MISSING if frame is None else variables_of(frame).get(root.name, MISSING)
        else:
            value = root
        return follow(value, self.path)


def follow(value: object, path: tuple[Step, ...]) -> object:
    """The value at the end of a path; runs no code of the program's."""
    for step in path:
        value = _member(value, step)
        if value is MISSING:
            break
    return value


def _member(owner: object, step: Step) -> object:
    if isinstance(step, Item):
        if isinstance(owner, _CONTAINERS):
            base: Any = next(each for each in _CONTAINERS if isinstance(owner, each))
            try:
                return base.__getitem__(owner, step.key)
            except (LookupError, TypeError):
                pass
        return MISSING
    own = attributes(owner)
    if step in own:
        return own[step]
    if isinstance(owner, torch.nn.Module):
        for kind in HOLDERS:
            entries = own.get(kind)
            if isinstance(entries, dict) and step in entries:
                return entries[step]
    slots = dict(slots_of(owner))
    if step in slots:
        return slots[step]
    found = (vars(base).get(step, MISSING) for base in type(owner).__mro__)
    return next((each for each in found if not isinstance(each, MemberDescriptorType)), MISSING)


class CapturedFrames:
    """The functions that were running when a capture began, whose variables can be read after it."""

    def __init__(self) -> None:
        self._codes = {id(frame.f_code) for frame in frames_of_program()}

    def holds(self, place: Place) -> bool:
        """Whether a place is there after the capture."""
        root = place.root
        return not isinstance(root, Variable) or id(root.code) in self._codes


def frames_of_program(
    is_left_out: Callable[[str], bool] = is_own, most: int = _MOST_FRAMES
) -> list[FrameType]:
    """The frames that called, the nearest first, without those of some files: graphdoctor's."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < most:
        if not is_left_out(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back or frame_of_engine(frame)
    return frames


def users_frames() -> list[FrameType]:
    """The user's frames that called, the nearest first."""
    return frames_of_program(is_machinery, _MOST_USERS)


def expressions_of_program() -> Iterator[tuple[FrameType, Expression]]:
    """What the frames that called run, the nearest first; not those that read no variable."""
    frames = frames_of_program()
    for position, frame in enumerate(frames):
        operands = _operands_at(frame)
        if operands:
            yield frame, Expression(frame, frames[position + 1 :], operands)


class Expression:
    """What a frame runs now, such as a call or a product, and what it is computed from."""

    def __init__(
        self, frame: FrameType, callers: list[FrameType], operands: tuple[ast.expr, ...]
    ) -> None:
        self.operands = operands
        self._frame, self._callers = frame, callers

    def place(self, chain: ast.expr) -> tuple[Place, object] | None:
        """The place that a name, an attribute or a constant item is read from, and its value."""
        path: list[Step] = []
        node = chain
        while not isinstance(node, ast.Name):
            if isinstance(node, ast.Attribute):
                path.append(node.attr)
                node = node.value
            elif isinstance(node, ast.Subscript) and (item := _constant_item(node.slice)):
                path.append(item)
                node = node.value
            else:
                return None
        path.reverse()
        found = self._root(node.id)
        if found is None:
            return None
        root, value = found
        if isinstance(root, Variable) and path:
            with suppress(TypeError):  # not every object has weak references
                root = ref(value)
        if not isinstance(root, dict):
            place = Place(root, tuple(path), ast.unparse(chain))
        else:
            place = Place(root, (Item(node.id), *path), ast.unparse(chain))
        value = follow(value, tuple(path))
        return None if value is MISSING else (place, value)

    def places(self, operand: ast.expr) -> Iterator[tuple[Place, object]]:
        """The place of an operand, and those of the items of a tuple or list, which may be `*args`."""
        found = self.place(operand)
        if found is None:
            return
        yield found
        place, value = found
        items: Sequence[object] = value if isinstance(value, tuple | list) else ()
        for index, item in enumerate(items):
            text = f"{place.text}[{index}]"
            yield Place(place.root, (*place.path, Item(index)), text), item

    def _root(self, name: str) -> tuple[Root, object] | None:
        frame = self._frame
        code = frame.f_code
        if name in code.co_varnames or name in code.co_cellvars:
            return _variable(frame, name)
        if name in code.co_freevars:
            for caller in self._callers:
                if name in caller.f_code.co_cellvars:
                    return _variable(caller, name)
            return None
        if name in frame.f_globals:
            return frame.f_globals, frame.f_globals[name]
        return None

    def computed(
        self, operand: ast.expr, number_of: Callable[[object], object], depth: int = 0
    ) -> Computed | None:
        """An operand that is a number of the program, or arithmetic with some; None if there is more in it."""
        leaves: dict[int, Leaf] = {}

        def read(chain: ast.expr) -> object:
            place, value = self.place(chain) or (None, MISSING)
            number = number_of(value)
            if place is None or number is MISSING:
                return MISSING
            assigned, root = None, place.root
            if isinstance(root, Variable) and root.code is self._frame.f_code and not place.path:
                assigned = _assigned(root.code).get(root.name) if depth < _MOST_STEPS else None
            again = self.computed(assigned, number_of, depth + 1) if assigned is not None else None
            is_same = again is not None and again.value == number
            leaves[id(chain)] = Leaf(place, number, again if is_same else None)
            return number

        value = _computed(operand, read)
        return None if value is MISSING else Computed(operand, value, leaves)


class Leaf(NamedTuple):
    """A place that arithmetic reads, its number then, and how a local variable of one assignment got it."""

    place: Place
    number: Any
    assigned: Computed | None


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """Arithmetic with numbers of the program. `leaves` are read by the identity of a name, attribute or item in it.

    A variable of a function that has ended is computed from what was assigned to it.
    """

    node: ast.expr
    value: Any  # at capture
    leaves: dict[int, Leaf]

    def places(self) -> Iterator[Leaf]:
        """All places that it depends on."""
        for leaf in self.leaves.values():
            yield leaf
            if leaf.assigned is not None:
                yield from leaf.assigned.places()

    @property
    def name(self) -> str:
        """The expression as the program has it."""
        return ast.unparse(self.node)

    def now(self, frames: list[FrameType]) -> Any:
        """The number as it would be now; None if that is not known."""

        def read(chain: ast.expr) -> object:
            place, _, assigned = self.leaves[id(chain)]
            value = _plain(place.read(frames))
            if value is MISSING and assigned is not None:
                value = assigned.now(frames)
                return MISSING if value is None else value
            return value

        value = _computed(self.node, read)
        return None if value is MISSING else value


def _constant_item(index: ast.expr) -> Item | None:
    match index:
        case ast.Constant(value=str() | int() as key):
            return Item(key)
    return None


def _variable(frame: FrameType, name: str) -> tuple[Root, object] | None:
    found = variables_of(frame)
    return (Variable(frame.f_code, name), found[name]) if name in found else None


# By the identity of a code object, which is held: its hash is slow.
_AT: dict[tuple[int, int], tuple[CodeType, tuple[ast.expr, ...]]] = {}


def _operands_at(frame: FrameType) -> tuple[ast.expr, ...]:
    code, instruction = frame.f_code, frame.f_lasti
    known = _AT.get((id(code), instruction))
    if known is None:
        position = next(islice(code.co_positions(), instruction // 2, None), None)
        node = None if position is None else _nodes(code.co_filename).get(position)
        found = tuple(each for each in _operands(node) if not isinstance(each, ast.Constant))
        known = _AT[id(code), instruction] = code, found
    return known[1]


@cache
def _nodes(file: str) -> dict[tuple[int | None, ...], ast.AST]:
    """The expressions and assignments of a file by first and last line, first and last column."""
    tree = tree_of(file)
    found: dict[tuple[int | None, ...], ast.AST] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.expr | ast.AugAssign):
            found[node.lineno, node.end_lineno, node.col_offset, node.end_col_offset] = node
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign):  # `x[i] = y` runs where its target is
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    at = target.lineno, target.end_lineno, target.col_offset, target.end_col_offset
                    found[at] = node
    return found


def _operands(node: ast.AST | None) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp():
            yield from (node.left, node.right)
        case ast.UnaryOp():
            yield node.operand
        case ast.Call():
            if isinstance(node.func, ast.Attribute):
                yield node.func.value
            for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from _elements(each)
        case ast.Subscript():
            yield node.value
            yield from _elements(node.slice)
        case ast.Compare():
            yield from (node.left, *node.comparators)
        case ast.AugAssign():
            yield from (node.target, node.value)
        case ast.Assign():
            yield node.value
            for target in node.targets:
                yield from _operands(target)


def _elements(node: ast.expr | None) -> Iterator[ast.expr]:
    match node:
        case None:
            return
        case ast.Tuple() | ast.List():
            for each in node.elts:
                yield from _elements(each)
        case ast.Slice():
            for part in (node.lower, node.upper, node.step):
                yield from _elements(part)
        case ast.Starred():
            yield from _elements(node.value)
        case _:
            yield node


_ARITHMETIC: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


def _computed(node: ast.expr, read: Callable[[ast.expr], object]) -> Any:
    """The value of arithmetic with numbers; MISSING of anything else."""
    parts: tuple[ast.expr, ...]
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return read(node)
        case ast.BinOp(left=left, op=op, right=right):
            parts = (left, right)
            compute = _ARITHMETIC.get(type(op))
        case ast.UnaryOp(op=op, operand=one):
            parts = (one,)
            compute = _ARITHMETIC.get(type(op))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            parts, compute = tuple(args), _FUNCTIONS.get(name)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr=name), args=args):
            parts, compute = tuple(args), getattr(math, name, None)
        case _:
            return MISSING
    values = [_computed(part, read) for part in parts]
    if compute is None or MISSING in values:
        return MISSING
    try:
        return compute(*values)
    except (ArithmeticError, TypeError, ValueError):
        return MISSING


_ASSIGNED: dict[int, tuple[CodeType, dict[str, ast.expr]]] = {}


def _assigned(code: CodeType) -> dict[str, ast.expr]:
    """What the variables of a function get that are assigned once."""
    known = _ASSIGNED.get(id(code))
    if known is None:
        owner = owner_of(code)
        stores: dict[str, int] = {}
        values: dict[str, ast.expr] = {}
        for node in ast.walk(owner) if owner is not None else ():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stores[node.id] = stores.get(node.id, 0) + 1
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        values[target.id] = node.value
        once = {name: value for name, value in values.items() if stores[name] == 1}
        known = _ASSIGNED[id(code)] = code, once
    return known[1]


class Holder(NamedTuple):
    """What led to a tensor when a capture began; it keeps nothing alive. `geometry` is None of no plain tensor."""

    geometry: Geometry | None
    place: Place | None
    text: str


def tensors_of_program(
    frames: Sequence[FrameType], roots: Mapping[str, object]
) -> Iterator[tuple[torch.Tensor, Place | None, str]]:
    """All tensors that variables of the frames and roots lead to, each as often as it is found, with its name.

    Without a place it cannot be read again. Has to run without modes.
    """
    for frame in frames:
        variables = variables_of(frame)
        is_global = variables is frame.f_globals
        for name, value in list(variables.items()):
            root = frame.f_globals if is_global else Variable(frame.f_code, name)
            for steps, tensor in _held(value, (Item(name),)):
                text = _text("", steps)
                yield tensor, Place(root, steps if is_global else steps[1:], text), text
    # Modules first: a parameter is named by its module, whatever else leads to it.
    variables = {**roots, **roots_of(frames)}
    names = sorted(variables, key=lambda name: not isinstance(variables[name], torch.nn.Module))
    for path, value, _ in VariablesWalk({name: variables[name] for name in names}):
        if isinstance(value, torch.Tensor):
            yield value, None, str(path)
            continue
        attributes = getattr(value, "__dict__", None)
        if isinstance(value, type) or not isinstance(attributes, dict):
            continue
        entries = dict(attributes)
        if isinstance(value, torch.nn.Module):
            for kind in HOLDERS:  # a scripted module has none
                entries |= attributes.get(kind, {})
        with suppress(TypeError):  # no weak reference to it
            owner = ref(value)
            for name, entry in entries.items():
                for steps, tensor in _held(entry, (name,)) if name not in HOLDERS else ():
                    text = _text(str(path), steps)
                    yield tensor, Place(owner, steps, text), text


class VariablesWalk(Walk):
    """A walk from variables: what a variable holds is named by that variable, whatever else leads to it.

    Else a tensor of `self` is named by the `body` of a function that got `self.step`, as if a method had attributes.
    """

    def __init__(self, variables: Mapping[str, object]) -> None:
        super().__init__(variables)
        self._held = {id(value) for value in variables.values()}

    def __iter__(self) -> Iterator[Visit]:
        return islice(super().__iter__(), _MOST_VISITS)

    def children(self, visit: Visit) -> Iterable[Visit]:
        return (each for each in super().children(visit) if id(each.value) not in self._held)


def is_modules(place: Place) -> bool:
    """Whether a module has it as its parameter, buffer or attribute."""
    owner = place.root() if isinstance(place.root, ref) else None
    return isinstance(owner, torch.nn.Module) and len(place.path) == 1


def is_registered(place: Place) -> bool:
    """Whether a module has it as its parameter or buffer."""
    owner: Any = place.root() if is_modules(place) and isinstance(place.root, ref) else None
    kinds = ("_parameters", "_buffers")  # a scripted module has none
    return owner is not None and any(place.path[0] in vars(owner).get(kind, ()) for kind in kinds)


def _held(value: Any, steps: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], torch.Tensor]]:
    """Tensors in containers, with the steps that lead there."""
    if isinstance(value, torch.Tensor):
        yield steps, value
    elif len(steps) < _DEEPEST and isinstance(value, dict):
        for key, item in list(value.items()):
            yield from _held(item, (*steps, Item(key)))
    elif len(steps) < _DEEPEST and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _held(item, (*steps, Item(index)))


def _text(path: str, steps: tuple[Step, ...]) -> str:
    for step in steps:
        key: Any = step.key if isinstance(step, Item) else step
        if isinstance(key, str) and key.isidentifier():
            path += f".{key}" if path else key
        else:
            path += "[...]" if isinstance(key, torch.Tensor) else f"[{key!r}]"
    return path


def _plain(value: object) -> object:
    return value if type(value) in (int, float) else MISSING


def roots_of(frames: Sequence[FrameType]) -> dict[str, object]:
    """The variables of some frames."""
    roots: dict[str, object] = {}
    for frame in frames:
        for names in (variables_of(frame), frame.f_globals):
            for name, value in list(names.items()):
                if not name.startswith("__") and not isinstance(value, _CODE):
                    roots.setdefault(name, value)
    return roots
