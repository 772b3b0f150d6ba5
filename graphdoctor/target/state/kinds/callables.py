"""Functions, their variables, classes, and what leads to another object: methods, caches, operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial, partialmethod
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef

from graphdoctor.target.state.kinds.kind import (
    MISSING,
    Kind,
    Restore,
    Surroundings,
    Visit,
    saved_dict,
    saved_names,
)
from graphdoctor.target.state.kinds.objects import Object
from graphdoctor.target.state.paths import By, StatePath
from graphdoctor.target.state.saved_tensor import Saving
from graphdoctor.target.state.variables import cells_of, class_members, global_names, is_user_class


class Function(Kind):
    types = (FunctionType,)

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        path, function = visit.path, visit.value
        assert isinstance(function, FunctionType)
        yield from variables_of(function, walk)
        yield Visit(path.attribute("defaults"), function.__defaults__ or (), False)
        yield Visit(path.attribute("kwdefaults"), function.__kwdefaults__ or {}, False)
        for name, child in list(vars(function).items()):
            yield Visit(path.attribute(name), child)

    def save(self, value: Any, saving: Saving) -> Iterator[Restore]:
        yield saved_dict(vars(value))
        yield from (saved_names(namespace, names) for namespace, names in global_names(value))

    def write(self, value: Any, path: StatePath, new: object) -> None:
        name, closure = path.own_name, value.__code__.co_freevars
        if name in closure:
            value.__closure__[closure.index(name)].cell_contents = new
            return
        others = (namespace for namespace, names in global_names(value) if name in names)
        for namespace in [each for each in (vars(value), *others) if name in each][:1]:
            namespace[name] = new


def variables_of(function: FunctionType, walk: Surroundings) -> Iterator[Visit]:
    """What a function uses from outside, by its variables' own names: closure, then globals."""
    for name, cell in cells_of(function).items():
        yield Visit(walk.variable(name, cell), cell)
    for namespace, names in global_names(function):
        for name in names:
            if name in namespace:
                yield Visit(walk.variable(name, namespace), namespace[name])


class Cell(Kind):
    """A variable of a closure."""

    types = (CellType,)

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        if (value := _contents(visit.value)) is not MISSING:
            yield Visit(visit.path, value)

    def save(self, value: Any, saving: Saving) -> Iterable[Restore]:
        return (saved_cell(value),)

    def write(self, value: Any, path: StatePath, new: object) -> None:
        value.cell_contents = new


def saved_cell(cell: CellType) -> Restore:
    value = _contents(cell)

    def restore() -> None:
        if value is not MISSING:
            cell.cell_contents = value
        elif _contents(cell) is not MISSING:
            del cell.cell_contents

    return restore


def _contents(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return MISSING


class Method(Kind):
    types = (MethodType,)

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        path, method = visit.path, visit.value
        assert isinstance(method, MethodType)
        # The object is what people know; the function matters for the globals it names.
        is_attribute = path.by is By.ATTRIBUTE and path.parent is not None
        yield Visit(path.parent if is_attribute and path.parent else path, method.__self__)
        yield Visit(path, method.__func__, False)


class Partial(Object):
    types = (partial, partialmethod)

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        path, held = visit.path, visit.value
        assert isinstance(held, (partial, partialmethod))
        yield Visit(path.attribute("func"), held.func)
        yield Visit(path.attribute("args"), held.args)
        yield Visit(path.attribute("keywords"), held.keywords)


class Class(Kind):
    """A class, whose attributes are state where it is the user's."""

    types = (type,)

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        path, cls = visit.path, visit.value
        assert isinstance(cls, type)
        if is_user_class(cls):
            for name, member in class_members(cls):
                yield Visit(path.attribute(name), member)

    def save(self, value: Any, saving: Saving) -> Iterable[Restore]:
        return (saved_class(value),) if is_user_class(value) else ()

    def write(self, value: Any, path: StatePath, new: object) -> None:
        if path.name in vars(value):
            type.__setattr__(value, str(path.name), new)


def saved_class(cls: type) -> Restore:
    """The attributes of a class of the user's, such as a counter kept on the class."""
    members = {n: v for n, v in vars(cls).items() if _is_plain_name(n)}

    def restore() -> None:
        for name in [n for n in vars(cls) if _is_plain_name(n) and n not in members]:
            type.__delattr__(cls, name)
        for name, value in members.items():
            if vars(cls).get(name, MISSING) is not value:
                type.__setattr__(cls, name, value)

    return restore


def _is_plain_name(name: str) -> bool:
    return not (name.startswith("__") and name.endswith("__")) and name != "_abc_impl"


_Cached = type(cache(lambda: None))


class Reference(Object):
    """A method in C, a cache, an operator of the user's: it leads to another object."""

    types = (
        BuiltinFunctionType,
        _Cached,
        CustomOpDef,
        torch._ops.OpOverloadPacket,
        torch._ops.OpOverload,
    )

    def children(self, visit: Visit, walk: Surroundings) -> Iterator[Visit]:
        for found in _behind(visit.value):
            yield Visit(visit.path, found, visit.shown)


def _behind(value: Any) -> Iterator[object]:
    kind = type(value)
    if issubclass(kind, _Cached):
        yield value.__wrapped__
    elif issubclass(kind, CustomOpDef):
        yield from (value._init_fn, *value._backend_fns.values())
    elif issubclass(kind, torch._ops.OpOverload):
        yield from filter(None, [OPDEFS.get(value._name)])
    elif issubclass(kind, torch._ops.OpOverloadPacket):
        yield from filter(None, [OPDEFS.get(value._qualified_op_name)])
    elif not isinstance(value.__self__, (ModuleType, type)):
        yield value.__self__
