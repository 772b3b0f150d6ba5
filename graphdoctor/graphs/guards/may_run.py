"""A model's functions -> those that its forward may run. Methods for training read what no forward does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import FunctionType

import torch

from graphdoctor.target.state.variables import is_user_class, mentions

_RUN_BY_TORCH = frozenset({"forward"})


def may_run(
    functions: Sequence[FunctionType], modules: Iterable[torch.nn.Module]
) -> list[FunctionType]:
    """Those that are no methods, and methods that Python or a library calls, or that one of these mentions."""
    names = _RUN_BY_TORCH | _of_libraries({type(module) for module in modules})
    found: list[FunctionType] = []
    waiting = list(functions)
    while called := [each for each in waiting if _is_called(each, names)]:
        found += called
        names = names.union(*map(mentions, called))
        waiting = [each for each in waiting if not _is_called_in(each, called)]
    return found


def _is_called(function: FunctionType, names: frozenset[str]) -> bool:
    name = function.__name__
    return (
        not _is_method(function) or name in names or (name.startswith("__") and name.endswith("__"))
    )


def _is_called_in(function: FunctionType, called: Sequence[FunctionType]) -> bool:
    return any(function is each for each in called)


def _is_method(function: FunctionType) -> bool:
    outer = function.__qualname__.rpartition(".")[0]
    return bool(outer) and not outer.endswith("<locals>") and function.__name__ != "<lambda>"


def _of_libraries(kinds: Iterable[type]) -> frozenset[str]:
    """What a library's forward may call of a class of the user's that is derived from it."""
    bases = {
        base for kind in kinds for base in kind.__mro__ if any(map(is_user_class, kind.__mro__))
    }
    return frozenset(
        name
        for base in bases - {torch.nn.Module, object}
        if not is_user_class(base)
        for name in vars(base)
    )
