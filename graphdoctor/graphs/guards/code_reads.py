"""A function of the user's -> what its code reads by name: globals, and what it takes from libraries' modules."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType

from graphdoctor.target.state.variables import (
    Namespace,
    global_names,
    mentions,
    user_namespaces,
)
from graphdoctor.target.user_code import is_user_file

# Host functions of theirs are stood in for while a call is studied, and answer for the device.
_OF_DEVICES = ("torch.cuda", "torch.distributed")


def global_reads(function: FunctionType) -> Iterator[tuple[Namespace, str]]:
    """Names that a function's code loads as globals; of modules of the user's, all that it mentions.

    A name that is an attribute only, as `x` in `self.x`, says nothing about a global `x`.
    """
    loaded = set(_loaded(function.__code__))
    for namespace, names in global_names(function):
        is_own = namespace is function.__globals__ and "globals" not in loaded
        for name in names:
            if name in namespace and (name in loaded or not is_own):
                yield namespace, name


def absent_reads(function: FunctionType) -> Iterator[tuple[Namespace, frozenset[str]]]:
    """Names that its code loads as globals, or mentions beside a module of the user's, and that are not there."""
    code = function.__code__
    if not is_user_file(code.co_filename):
        return
    loaded, mentioned = frozenset(_loaded(code)), frozenset(mentions(function))
    for namespace in user_namespaces(function):
        asked = (
            mentioned if "globals" in loaded or namespace is not function.__globals__ else loaded
        )
        if absent := asked - namespace.keys():
            yield namespace, absent


def parts_of(function: FunctionType) -> Iterator[str]:
    """What it is made of. Where it has no defaults, each call that was captured gave all its arguments."""
    yield "__code__"
    if function.__defaults__ is not None:
        yield "__defaults__"
    if function.__kwdefaults__ is not None:
        yield "__kwdefaults__"


def library_reads(function: FunctionType) -> Iterator[tuple[str, Namespace, str]]:
    """What it takes from modules of libraries, as `F.relu`: a path, the module's namespace and the name.

    Somebody may put another function there later, as patches of attention do.
    """
    if not is_user_file(function.__code__.co_filename):
        return
    mentioned = mentions(function)
    waiting, seen = list(_modules_named(function)), set()
    while waiting:
        module = waiting.pop()
        if id(module) in seen or not _is_library(module):
            continue
        seen.add(id(module))
        held = vars(module)
        for name in mentioned:
            value = held.get(name)
            if isinstance(value, ModuleType):
                waiting.append(value)
            elif name in held and not is_ours(value):
                yield f"{module.__name__}.{name}", held, name


def _modules_named(function: FunctionType) -> Iterator[ModuleType]:
    values = [function.__globals__.get(name) for name in _loaded(function.__code__)]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            values.append(cell.cell_contents)
    return (value for value in values if isinstance(value, ModuleType))


def _is_library(module: ModuleType) -> bool:
    if module.__name__.startswith(_OF_DEVICES):
        return False
    if module.__name__.partition(".")[0] in sys.stdlib_module_names:
        return True
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and not is_user_file(file)


def is_ours(value: object) -> bool:
    """Whether it stands in for a library's function as long as a call is studied."""
    return str(getattr(value, "__module__", "")).startswith("graphdoctor.")


def _loaded(code: CodeType) -> Iterator[str]:
    waiting = [code]
    while waiting:
        current = waiting.pop()
        for instruction in dis.get_instructions(current):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                yield str(instruction.argval)
        waiting.extend(const for const in current.co_consts if isinstance(const, CodeType))
