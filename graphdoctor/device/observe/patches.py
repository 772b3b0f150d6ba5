"""Attributes replaced for the length of a `with` block, and put back whatever happens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Set
from functools import cache
from itertools import repeat
from operator import is_
from types import ModuleType
from typing import ClassVar

import torch

from graphdoctor.target.state.dict_versions import version_function

_MISSING = object()


class Patches:
    """A stack of replaced attributes; leaving the block restores them in reverse order."""

    # What was looked for the last time, by id, and the versions of modules' names that had none of it.
    _searched: ClassVar[tuple[Set[int], Set[int | None]]] = (frozenset(), frozenset())
    # Versions of modules' names when a block was left the last time: none had stand-ins that were made since.
    _left: ClassVar[Set[int | None]] = frozenset()

    def __init__(self) -> None:
        self._changes: list[tuple[object, str, object, object]] = []
        self._versions = Patches._left  # of modules' names that took no stand-ins, or in `_changes`

    def set(self, owner: object, name: str, value: object) -> None:
        """Replace an attribute that exists, or add one that does not."""
        self._changes.append((owner, name, vars(owner).get(name, _MISSING), value))
        setattr(owner, name, value)

    def replace(self, owner: object, name: str, make: Callable[..., object]) -> None:
        """Replace an attribute by `make(original)`; nothing happens where this torch lacks it."""
        original = getattr(owner, name, None)
        if original is not None:
            self.set(owner, name, make(original))

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Put back what was there."""
        # Modules that were imported or written to meanwhile took stand-ins by name.
        stand_ins = {id(new): old for new, old in self._replaced()}
        modules = _modules()
        _rename(stand_ins, [module for module, at in modules if at not in self._versions])
        Patches._left = {at for _, at in modules if at is not None}
        while self._changes:
            owner, name, value, _ = self._changes.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

    def reach_imported_names(self) -> None:
        """Replace what modules had taken before by name: `from torch.cuda import is_available`."""
        originals = {id(old): new for new, old in self._replaced()}
        values, versions = Patches._searched
        without = versions if originals.keys() <= values else frozenset()
        modules = _modules()
        searched = [(module, at) for module, at in modules if at not in without]
        changes = _rename(originals, [module for module, _ in searched])
        self._changes += changes
        written = {id(module): module for module, *_ in changes}
        found = {at for _, at in modules} - {at for module, at in searched if id(module) in written}
        found.discard(None)
        Patches._searched = frozenset(originals), found
        version = _version()
        self._versions = found | {version(vars(each)) for each in written.values() if version}

    def _replaced(self) -> Iterator[tuple[object, object]]:
        """Functions and classes of modules: the stand-in, and what it stands for."""
        for owner, _, old, new in self._changes:
            if isinstance(owner, ModuleType) and callable(old) and callable(new):
                yield new, old


def _rename(
    wanted: dict[int, object], modules: Iterable[ModuleType]
) -> list[tuple[object, str, object, object]]:
    """Give these modules' names another value, wherever they have one of those in the table."""
    changes: list[tuple[object, str, object, object]] = [
        (module, name, value, wanted[id(value)])
        for module in modules
        if not wanted.keys().isdisjoint(map(id, list(vars(module).values())))
        and not module.__name__.startswith("graphdoctor.")
        for name, value in list(vars(module).items())
        if id(value) in wanted
    ]
    for module, name, _, new in changes:
        setattr(module, name, new)
    return changes


# What was imported when modules were last asked for, which of that are modules, and their names.
_listed: tuple[list[object], list[ModuleType], list[dict[str, object]]] = ([], [], [])


def _modules() -> list[tuple[ModuleType, int | None]]:
    """Each module with the version of its names, which changes whenever one of them is written to.

    What was looked through at a version need not be again: to go through torch's hundred thousand
    names takes longer than a small step. So does a loop in Python over its thousands of modules.
    """
    global _listed
    imported: list[object] = list(sys.modules.values())
    if len(imported) != len(_listed[0]) or not all(map(is_, imported, _listed[0])):
        modules = [module for module in imported if isinstance(module, ModuleType)]
        _listed = imported, modules, list(map(vars, modules))
    version = _version()
    _, modules, names = _listed
    versions = map(version, names) if version else repeat(None, len(names))
    return list(zip(modules, versions, strict=True))


@cache
def _version() -> Callable[[dict[str, object]], int] | None:
    return version_function()


def hide_function_mode_from_python(patches: Patches) -> None:
    """Let torch's Python functions run their bodies under the function mode.

    A function such as `torch.nn.functional.softmax` asks `has_torch_function` first, and hands
    itself to the mode if one is active; the mode is off while it handles that call, so `x.device`
    inside the body would answer with the physical device. With the mode hidden from these checks
    the body runs as ordinary code, and the mode sees each C function that it calls.
    """
    from torch import overrides

    checks: dict[object, Callable[..., bool]] = {
        overrides.has_torch_function: _any_overrides,
        overrides.has_torch_function_unary: _overrides,
        overrides.has_torch_function_variadic: _any_argument_overrides,
    }
    for module, name in _asking():
        check = checks.get(vars(module).get(name))
        if check is not None:
            patches.set(module, name, check)


_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_known: tuple[list[str], list[tuple[ModuleType, str]]] = ([], [])  # for these modules


def _asking() -> list[tuple[ModuleType, str]]:
    """Torch's modules that have such a check, and its name; looked for once something was imported."""
    global _known
    imported = list(sys.modules)
    if imported != _known[0]:
        torchs = [
            module
            for name, module in list(sys.modules.items())
            if isinstance(module, ModuleType) and (name == "torch" or name.startswith("torch."))
        ]
        found = [(module, name) for module in torchs for name in _CHECKS if name in vars(module)]
        _known = imported, found
    return _known[1]


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_PLAIN_METHOD = vars(torch.Tensor)["__torch_function__"].__func__


def _overrides(value: object) -> bool:
    kind = type(value)
    if kind in _PLAIN_TYPES or not torch._C._is_torch_function_enabled():
        return False  # the latter while code of a subclass calls what it stands for
    method = getattr(kind, "__torch_function__", None)
    if method is None or method is torch._C._disabled_torch_function_impl:
        return False
    return getattr(method, "__func__", method) is not _PLAIN_METHOD


def _any_overrides(values: object) -> bool:
    return any(map(_overrides, values))  # type: ignore[call-overload]


def _any_argument_overrides(*values: object) -> bool:
    return any(map(_overrides, values))


def let_scripts_ask_for_overrides() -> None:
    """TorchScript knows torch's own checks by what they are; here are others in their places."""
    for check in (_overrides, _any_overrides, _any_argument_overrides):
        torch.jit._builtins._register_builtin(check, "aten::has_torch_function")
