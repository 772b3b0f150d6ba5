"""Modules at capture -> whether their attributes are still the same, asked in a few passes in C."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch

from graphdoctor.target.state.attributes import attributes

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOLDERS = ("_parameters", "_buffers", "_modules")
# The rest of what torch keeps in each module says nothing about its forward.
_IGNORED = frozenset(vars(torch.nn.Module())) - {"training", *_HOLDERS, *_HOOKS[:2]}
_call = getattr(operator, "call")  # noqa: B009  (since Python 3.11; typeshed asks for more)


class ModuleWatch:
    """The attributes of modules (`own` has their `__dict__`s), and what of them held nothing.

    `empty` are the dictionaries, of hooks most of all, that have to stay so. What is in the others
    is for others to watch.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self.own = [attributes(module) for module in modules]
        names = [[name for name in own if name not in _IGNORED] for own in self.own]
        self._read = [operator.itemgetter(*each) for each in names]
        self._values = list(map(_call, self._read, self.own))
        self._counts = list(map(len, self.own))
        holders: list[Any] = [own[n] for own in self.own for n in (*_HOOKS, *_HOLDERS) if n in own]
        self.empty = [holder for holder in holders if not holder]
        self._hooks = [own[n] for own in self.own for n in _HOOKS if n in own and not own[n]]

    def values_are_same(self) -> bool:
        """Raises where an attribute is gone, or a tensor is in another's place."""
        return (
            list(map(_call, self._read, self.own)) == self._values
            and list(map(len, self.own)) == self._counts
        )

    def has_new_hook(self) -> bool:
        """Whether a hook was registered on a module that had none of its kind."""
        return any(self._hooks)
