"""Find the attributes of modules that no code of a step reads, such as an environment that a constructor keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial, partialmethod
from types import CellType, FunctionType

import torch

from graphdoctor.graphs.calls.signature import is_constant
from graphdoctor.target.state.attributes import attributes, is_stateful
from graphdoctor.target.state.kinds.kind import Visit
from graphdoctor.target.state.paths import By
from graphdoctor.target.state.variables import is_user_class, may_read
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.user_code import is_user_file

# transformers' models hold what generate() goes by, which no forward reads, and programs change it between calls.
_NEVER_READ = "generation_config"
_OF_TORCH = frozenset(vars(torch.nn.Module()))
_WATCHED = (torch.Tensor, FunctionType, CellType, type, partial, partialmethod)
_WRAPPED = ("__wrapped__", "func")  # of a captured method, and of a functools.cached_property


def is_unread(module: torch.nn.Module, name: str, value: object, unread: Set[str]) -> bool:
    """Whether an attribute of a module is one of those that no code reads."""
    return name == _NEVER_READ or (name in unread and _may_be_unread(module, name, value))


class ReadWalk(Walk):
    """A walk past the `unread` attributes of modules."""

    def __init__(
        self,
        roots: Mapping[str, object],
        *,
        unread: Set[str],
        without: Iterable[object] = (),
    ) -> None:
        super().__init__(roots, without=without)
        self._unread = unread

    def children(self, visit: Visit) -> Iterable[Visit]:
        found, module = super().children(visit), visit.value
        if not isinstance(module, torch.nn.Module):
            return found
        return (
            each
            for each in found
            if each.path.by is not By.ATTRIBUTE
            or not is_unread(module, str(each.path.name), each.value, self._unread)
        )


class _CodeWalk(ReadWalk):
    """Such a walk that also enters the functions that are wrapped in objects."""

    def children(self, visit: Visit) -> Iterator[Visit]:
        yield from super().children(visit)
        if not isinstance(visit.value, (FunctionType, torch.nn.Module)):
            own = attributes(visit.value)
            for inner in filter(None, map(own.get, _WRAPPED)):
                yield Visit(visit.path, inner, False)


def unread_attributes(
    roots: Mapping[str, object], modules: Sequence[torch.nn.Module]
) -> frozenset[str]:
    """The names of attributes of these modules that no code reads to which the roots lead, by a name or a string.

    Only objects and containers that the user's modules hold may be unread. Code to which only such an attribute leads
    counts once other code reads the attribute. Nothing is unread if the step is a library's, most of whose functions
    no walk enters.
    """
    unread = frozenset(
        name
        for module in modules
        for name, value in attributes(module).items()
        if _may_be_unread(module, name, value)
    )
    steps = (each for each in roots.values() if isinstance(each, FunctionType))
    if not unread or not all(is_user_file(step.__code__.co_filename) for step in steps):
        return frozenset()
    classes = {cls for module in modules for cls in type(module).__mro__[:-1]}
    functions = [each for cls in classes for each in vars(cls).values()]
    of_modules = [each.__code__ for each in functions if isinstance(each, FunctionType)]
    have_run = {id(code) for code in of_modules if code.co_name == "__init__"}
    while unread:
        walk = _CodeWalk(roots, unread=unread)
        found = [each.__code__ for _, each, _ in walk if isinstance(each, FunctionType)]
        codes = {id(code): code for code in (*of_modules, *found)}
        read = [may_read(c, unread, with_own=i not in have_run) for i, c in codes.items()]
        if not any(read):
            break
        unread = unread.difference(*read)
    return unread


def _may_be_unread(module: torch.nn.Module, name: str, value: object) -> bool:
    if name in _OF_TORCH or is_constant(value) or is_stateful(value):
        return False
    if isinstance(value, _WATCHED):
        return False
    own = (c for c in type(module).__mro__[:-1] if c.__module__.partition(".")[0] != "torch")
    return all(map(is_user_class, own))
