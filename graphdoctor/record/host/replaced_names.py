"""Functions and classes of Python's and torch's, replaced for a while wherever the user's code keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.user_code import is_user_file


@contextmanager
def standing_in(
    roots: Mapping[str, object], others: Mapping[int, object], *owners: ModuleType | type
) -> Iterator[None]:
    """In this block code that the roots lead to finds others in place of objects, given by their identity.

    `owners` are the modules and classes in which the objects live.
    """
    reached = [value for _, value, _ in Walk(roots, with_empty=False)]
    others = {**others, **_made_of(reached, others)}
    with ExitStack() as stack:
        for owner in owners:
            if isinstance(owner, type):
                _stand_in_class(owner, others, stack)
            else:
                _stand_in(vars(owner), others, stack)
        for value in reached:
            if isinstance(value, FunctionType):
                if is_user_file(value.__code__.co_filename):
                    _stand_in(value.__globals__, others, stack)
                    _put_defaults(value, others, stack)
            elif isinstance(value, CellType):
                _put_content(value, others, stack)
            elif isinstance(value, type):
                _stand_in_class(value, others, stack)
            elif type(value) is list:
                for at, held in enumerate(value):
                    if (put := _other(held, others)) is not None:
                        _put(partial(value.__setitem__, at), held, put, stack)
            elif not isinstance(value, ModuleType):
                _stand_in(value if type(value) is dict else attributes(value), others, stack)
        yield


def _made_of(reached: Iterable[object], others: Mapping[int, object]) -> dict[int, object]:
    """Partials and methods of the others: what is called cannot be put into either."""
    found: dict[int, object] = {}
    for one in reached:
        if type(one) is partial and callable(put := others.get(id(one.func))):
            found[id(one)] = partial(put, *one.args, **one.keywords)
        elif type(one) is MethodType and callable(put := others.get(id(one.__func__))):
            found[id(one)] = MethodType(put, one.__self__)
    return found


def _stand_in_class(kind: type, others: Mapping[int, object], stack: ExitStack) -> None:
    for name, held in list(vars(kind).items()):
        if (put := _other(held, others)) is not None:
            _put(partial(type.__setattr__, kind, name), held, put, stack)


def _stand_in(space: dict[str, Any], others: Mapping[int, object], stack: ExitStack) -> None:
    for name, held in list(space.items()):
        if (put := _other(held, others)) is not None:
            _put(partial(space.__setitem__, name), held, put, stack)


def _put_defaults(function: FunctionType, others: Mapping[int, object], stack: ExitStack) -> None:
    held = function.__defaults__ or ()
    puts = tuple(others.get(id(one), one) for one in held)
    if any(one is not other for one, other in zip(held, puts, strict=True)):
        _put(partial(setattr, function, "__defaults__"), held, puts, stack)
    for cell in function.__closure__ or ():
        _put_content(cell, others, stack)
    _stand_in(function.__kwdefaults__ or {}, others, stack)


def _put_content(cell: CellType, others: Mapping[int, object], stack: ExitStack) -> None:
    try:
        held = cell.cell_contents
    except ValueError:  # it is empty
        return
    if (put := others.get(id(held))) is not None:
        _put(partial(setattr, cell, "cell_contents"), held, put, stack)


def _other(held: object, others: Mapping[int, object]) -> object:
    if isinstance(held, staticmethod):
        put = others.get(id(held.__func__))
        return staticmethod(put) if callable(put) else None
    return others.get(id(held))


def _put(write: Callable[[object], object], held: object, put: object, stack: ExitStack) -> None:
    stack.callback(write, held)
    write(put)
