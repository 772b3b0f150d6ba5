"""Functions and classes of Python's and torch's, replaced for a while wherever the user's code keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CellType, FunctionType, ModuleType
from typing import Any

from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.user_code import is_user_file


@contextmanager
def standing_in(
    roots: Mapping[str, object], others: Mapping[int, object], *modules: ModuleType
) -> Iterator[None]:
    """In this block code that the roots lead to finds others in place of objects, given by their identity.

    `modules` are those in which the objects live.
    """
    with ExitStack() as stack:
        for module in modules:
            _stand_in(vars(module), others, stack)
        for _, value, _ in Walk(roots, with_empty=False):
            if isinstance(value, FunctionType):
                if is_user_file(value.__code__.co_filename):
                    _stand_in(value.__globals__, others, stack)
                    _put_defaults(value, others, stack)
            elif isinstance(value, CellType):
                _put_content(value, others, stack)
            elif isinstance(value, type):
                for name, held in list(vars(value).items()):
                    if (put := _other(held, others)) is not None:
                        _put(partial(type.__setattr__, value, name), held, put, stack)
            elif not isinstance(value, ModuleType):
                _stand_in(value if type(value) is dict else attributes(value), others, stack)
        yield


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
