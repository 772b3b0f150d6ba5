"""Modules at capture -> whether their attributes are still the same, asked in a few passes in C."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch

from graphdoctor.target.attributes import attributes

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOLDERS = ("_parameters", "_buffers", "_modules")
# The rest of what torch keeps in each module says nothing about its forward.
_IGNORED = frozenset(vars(torch.nn.Module())) - {"training", *_HOLDERS, *_HOOKS[:2]}
_call = getattr(operator, "call")  # noqa: B009  (since Python 3.11; typeshed asks for more)


class ModuleWatch:
    """The attributes of modules, and that what held nothing, as most hooks do, still holds nothing.

    What parameters, buffers, submodules and existing hooks are is for others to watch: dictionaries.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._own = [attributes(module) for module in modules]
        names = [[name for name in own if name not in _IGNORED] for own in self._own]
        self._read = [operator.itemgetter(*each) for each in names]
        self._values = list(map(_call, self._read, self._own))
        self._counts = list(map(len, self._own))
        holders: list[Any] = [own[n] for own in self._own for n in (*_HOOKS, *_HOLDERS) if n in own]
        self._empty = [holder for holder in holders if not holder]
        self._hooks = [own[n] for own in self._own for n in _HOOKS if n in own and not own[n]]

    def is_same(self) -> bool:
        """Raises where an attribute is gone, or a tensor is in another's place."""
        return (
            not any(self._empty)
            and list(map(_call, self._read, self._own)) == self._values
            and list(map(len, self._own)) == self._counts
        )

    def has_new_hook(self) -> bool:
        """Whether a hook was registered on a module that had none of its kind."""
        return any(self._hooks)
