"""Attributes replaced for the length of a `with` block, and put back whatever happens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import compress
from operator import is_, ne
from types import ModuleType
from typing import Any, ClassVar

import torch

from graphdoctor.target.state.dict_versions import version_function

_MISSING = object()
_UNKNOWN = float("nan")  # a version that equals none, not even itself
_MOST_KEPT = 8

# What is replaced: the module, the name and the value, by id.
_Key = frozenset[tuple[int, str, int]]


@dataclass(frozen=True, slots=True)
class _Imported:
    """The modules that are imported, their names, and the place of each in these lists by its id."""

    values: list[object] = field(default_factory=list)  # of sys.modules
    modules: list[ModuleType] = field(default_factory=list)
    names: list[dict[str, object]] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Look:
    """The modules of a moment, each with the version of its names: any write to one of them changes it.

    What was looked through at a version need not be again: to go through torch's hundred thousand
    names takes longer than a small step. So does a loop in Python over its thousands of modules.
    """

    imported: _Imported
    versions: list[float]

    def written_until(self, later: _Look) -> list[ModuleType]:
        """The modules that were imported or written to in between."""
        modules = later.imported.modules
        if later.imported is self.imported:
            return list(compress(modules, map(ne, self.versions, later.versions)))
        return [
            module
            for module, at in zip(modules, later.versions, strict=True)
            if self.version_of(module) != at
        ]

    def version_of(self, module: ModuleType) -> float:
        place = self.imported.places.get(id(module))
        return _UNKNOWN if place is None else self.versions[place]

    def with_versions(self, versions: dict[int, float]) -> _Look:
        """The same with other versions of these modules, by id."""
        changed = self.versions.copy()
        for module, at in versions.items():
            if (place := self.imported.places.get(module)) is not None:
                changed[place] = at
        return _Look(self.imported, changed)


_NOTHING = _Look(_Imported(), [])


@dataclass(frozen=True, slots=True)
class _Reached:
    """Which names of modules had one of the originals."""

    originals: tuple[object, ...] = ()  # kept alive: they are known by their ids
    names: tuple[tuple[ModuleType, str, object], ...] = ()
    left: _Look = _NOTHING  # once all was as before again: modules at these versions have no others


class Patches:
    """A stack of replaced attributes; leaving the block restores them in reverse order."""

    _kept: ClassVar[dict[_Key, _Reached]] = {}  # of the blocks that were left last
    _left: ClassVar[_Look] = _NOTHING  # when a block was left the last time

    def __init__(self) -> None:
        self._changes: list[tuple[object, str, object, object]] = []
        # Modules at these versions have no stand-ins, or in `_changes`: such were made since.
        self._look = Patches._left
        self._before: dict[int, float] = {}  # by id, the versions of modules that were set here
        self._reached: tuple[_Key, _Reached] | None = None
        # By the id of each stand-in, what it replaces; of the first `_known` changes.
        self._stand_ins: dict[int, object] = {}
        self._known = 0

    def set(self, owner: object, name: str, value: object) -> None:
        """Replace an attribute that exists, or add one that does not."""
        if isinstance(owner, ModuleType) and id(owner) not in self._before:
            self._before[id(owner)] = _version_of(owner)
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
        Patches._left = look = _look()
        if written := self._look.written_until(look):
            later = {id(new): old for _, _, old, new in self._replaced(self._known)}
            _rename(self._stand_ins | later, written)
        modules = {id(owner): owner for owner, *_ in self._changes if isinstance(owner, ModuleType)}
        while self._changes:
            owner, name, value, _ = self._changes.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        if self._reached is not None:
            (key, reached), self._reached = self._reached, None
            versions = {each: _version_of(module) for each, module in modules.items()}
            versions |= {id(module): _UNKNOWN for module in written}
            Patches._kept.pop(key, None)
            Patches._kept[key] = replace(reached, left=look.with_versions(versions))
            if len(Patches._kept) > _MOST_KEPT:
                del Patches._kept[next(iter(Patches._kept))]

    def reach_imported_names(self) -> None:
        """Replace what modules had taken before by name: `from torch.cuda import is_available`.

        Modules that nobody has written to since such a block was left have it under the names that they
        had it under then; the others are looked through.
        """
        replaced = [*self._replaced()]
        wanted = {id(old): new for _, _, old, new in replaced}
        key = frozenset((id(owner), name, id(old)) for owner, name, old, _ in replaced)
        kept = Patches._kept.get(key, _Reached())
        look = _look()
        searched = [
            module
            for module in kept.left.written_until(look)
            if self._before.get(id(module)) != kept.left.version_of(module)
        ]
        anew = set(map(id, searched))
        changes = [
            (module, name, old, wanted[id(old)])
            for module, name, old in kept.names
            if id(module) not in anew and vars(module).get(name) is old
        ]
        for module, name, _, new in changes:
            setattr(module, name, new)
        changes += _rename(wanted, searched)
        self._changes += changes
        # Other modules' names got the same.
        self._stand_ins = {id(new): old for _, _, old, new in replaced}
        self._known = len(self._changes)
        names = tuple((module, name, old) for module, name, old, _ in changes)
        self._reached = key, _Reached(tuple(old for _, _, old, _ in replaced), names)
        written = {id(module): module for module, *_ in changes}
        self._look = look.with_versions(
            {each: _version_of(module) for each, module in written.items()}
        )

    def _replaced(self, first: int = 0) -> Iterator[tuple[ModuleType, str, object, object]]:
        """Functions and classes of modules, from a change on: where, what was there, and the stand-in."""
        for owner, name, old, new in self._changes[first:]:
            if isinstance(owner, ModuleType) and callable(old) and callable(new):
                yield owner, name, old, new


def _rename(
    wanted: dict[int, object], modules: Iterable[ModuleType]
) -> list[tuple[ModuleType, str, object, object]]:
    """Give these modules' names another value, wherever they have one of those in the table."""
    changes = [
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


_imported = _Imported()  # when modules were last looked at
_imported_at = _UNKNOWN  # the version of sys.modules then


def _look() -> _Look:
    global _imported, _imported_at
    version = _version()
    now: float = version(sys.modules) if version else _UNKNOWN
    if now != _imported_at:
        _imported_at = now
        values: list[object] = list(sys.modules.values())
        before = _imported.values
        if len(values) != len(before) or not all(map(is_, values, before)):
            once = {id(module): module for module in values if isinstance(module, ModuleType)}
            modules = [*once.values()]
            places = {module: place for place, module in enumerate(once)}
            _imported = _Imported(values, modules, list(map(vars, modules)), places)
    names = _imported.names
    return _Look(_imported, list(map(version, names)) if version else [_UNKNOWN] * len(names))


def _version_of(module: ModuleType) -> float:
    version = _version()
    return version(vars(module)) if version else _UNKNOWN


@cache
def _version() -> Callable[[dict[str, Any]], float] | None:
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
