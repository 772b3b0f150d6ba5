"""The variables that a function or class of the user reads from outside."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Set
from contextlib import suppress
from functools import cache
from itertools import pairwise
from types import CellType, CodeType, FunctionType, ModuleType

from graphdoctor.target.user_code import is_user_file

Namespace = dict[str, object]
_ATTRIBUTE = frozenset(
    {"LOAD_ATTR", "STORE_ATTR", "DELETE_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}
)
_LONG = dis.opmap["EXTENDED_ARG"]
_BY_TEXT = frozenset(
    {"globals", "vars", "getattr", "hasattr", "setattr", "delattr", "__dict__"}
    | {"modules", "import_module"}
)

_READS_BY_TEXT = frozenset({"getattr", "attrgetter"})
_READS_ALL = frozenset({"vars", "__dict__", "__getattribute__", "eval", "exec"})


def cells_of(function: FunctionType) -> dict[str, CellType]:
    """The variables of enclosing functions that a function uses."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def global_names(function: FunctionType) -> Iterator[tuple[Namespace, tuple[str, ...]]]:
    """Namespaces with the names in them that the function's code uses.

    Libraries' functions are left out: what they name is the library. Modules of the user's are
    looked into for the names that the code mentions, since it may say `helpers.counter += 1`.
    A global of the name of an attribute, such as `step` beside `optimizer.step()`, is another variable.
    """
    if not is_user_file(function.__code__.co_filename):
        return
    names, attributes = _names_in(function.__code__)
    yield function.__globals__, names
    for found in _candidates(function, names):
        if not isinstance(found, ModuleType):
            continue
        used = tuple(name for name in attributes if name in vars(found))
        if used and _is_user_module(found.__name__, getattr(found, "__file__", None)):
            yield vars(found), used


def _candidates(function: FunctionType, names: tuple[str, ...]) -> Iterator[object]:
    """What may be a module: a global, one that the function imports itself, or a variable of its closure."""
    for name in names:
        yield function.__globals__.get(name, sys.modules.get(name))
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            yield cell.cell_contents


def attributes_read(function: FunctionType) -> dict[str, set[str]]:
    """The attributes that the function's code reads of variables from outside, by variable.

    Without variables that it uses in another way, such as to pass one on or to call one of its methods.
    """
    found: dict[str, set[str]] = {}
    others: set[object] = set()
    for nested in function.__code__.co_consts:
        if isinstance(nested, CodeType):
            others.update(mentioned(nested), nested.co_freevars)
    code = [each for each in dis.get_instructions(function.__code__) if each.opcode != _LONG]
    for each, after in pairwise(code):
        if not isinstance(each.argval, str) or not each.opname.startswith("LOAD"):
            continue
        is_variable = each.opname in ("LOAD_GLOBAL", "LOAD_DEREF")
        if not is_variable or after.opname != "LOAD_ATTR" or loads_method(after):
            others.add(each.argval)
        else:
            found.setdefault(each.argval, set()).add(str(after.argval))
    return {name: read for name, read in found.items() if name not in others}


def loads_method(instruction: dis.Instruction) -> bool:
    """Whether an instruction loads an attribute only to call it."""
    # Since Python 3.12 the lowest bit tells.
    is_flagged = sys.version_info >= (3, 12) and bool((instruction.arg or 0) & 1)
    in_one = instruction.opname in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and is_flagged
    return in_one or instruction.opname == "LOAD_METHOD"


def mentioned(code: CodeType) -> tuple[str, ...]:
    """Global and attribute names of a code object and of those nested in it, in order."""
    names: dict[str, None] = {}
    for each in _with_nested(code):
        names.update(dict.fromkeys((*each.co_names, *_names_in_texts(each))))
    return tuple(names)


# By identity, held with its code: a code object's own hash is computed from all that it holds each time.
_NAMES: dict[int, tuple[CodeType, tuple[str, ...], tuple[str, ...]]] = {}
_MOST_KNOWN = 4096


def _names_in(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Its global names, and all that it mentions. Each walk needs those of each function."""
    known = _NAMES.get(id(code))
    if known is None:
        if len(_NAMES) >= _MOST_KNOWN:
            _NAMES.clear()
        known = _NAMES[id(code)] = (code, _global_names(code), mentioned(code))
    return known[1:]


def _global_names(code: CodeType) -> tuple[str, ...]:
    """The same as `mentioned`, without names of attributes alone."""
    names: dict[str, None] = {}
    for each in _with_nested(code):
        named = (i for i in dis.get_instructions(each) if i.opcode in dis.hasname)
        names.update(dict.fromkeys(i.argval for i in named if i.opname not in _ATTRIBUTE))
        names.update(dict.fromkeys(_names_in_texts(each)))
    return tuple(names)


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    waiting = [code]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(const for const in current.co_consts if isinstance(const, CodeType))


def _names_in_texts(code: CodeType) -> Iterator[str]:
    if not _BY_TEXT.isdisjoint(code.co_names):
        yield from (c for c in code.co_consts if isinstance(c, str) and _is_name(c))


def _is_name(text: str) -> bool:
    """Whether it may name a variable, an attribute or a module."""
    return all(map(str.isidentifier, text.split(".")))


def may_read(code: CodeType, attributes: Set[str], *, with_own: bool = True) -> set[str]:
    """Which attributes the code, and the code nested in it, may read: by name, by a string, or all of an object's.

    `with_own` is False for a constructor that has run: only its strings and nested functions count.
    """
    found: set[str] = set()
    is_users = is_user_file(code.co_filename)
    for each in _with_nested(code):
        consts = (part for c in each.co_consts for part in (c if isinstance(c, tuple) else (c,)))
        texts = {c for c in consts if isinstance(c, str) and _is_name(c)}
        found |= {part for text in texts for part in text.split(".")} & attributes
        if each is code and not with_own:
            continue
        names = {*each.co_names, *each.co_freevars}
        found |= names & attributes
        if not is_users:  # a library knows no attributes of the user's but those of its own classes
            continue
        if names & _READS_ALL or (names & _READS_BY_TEXT and not texts):
            return set(attributes)
        if names & _READS_BY_TEXT:  # `getattr(self, f"env_{index}")`
            fixed = tuple(texts)
            found |= {n for n in attributes if n.startswith(fixed) or n.endswith(fixed)}
    return found


def is_user_class(cls: type) -> bool:
    """Whether a class is the user's own, so that its methods and attributes belong to the step."""
    name = getattr(cls, "__module__", None)
    if not isinstance(name, str) or name == "builtins":
        return False
    return _is_user_module(name, getattr(sys.modules.get(name), "__file__", None))


@cache
def _is_user_module(name: str, file: str | None) -> bool:
    if file is None:  # a notebook, or a file that was run without being registered
        return name.partition(".")[0] not in sys.stdlib_module_names - {"__main__"}
    return is_user_file(file)


def class_members(cls: type) -> Iterator[tuple[str, object]]:
    """The attributes and functions of a class, past the wrappers of static, class and property."""
    for name, member in list(vars(cls).items()):
        if name.startswith("__") and name.endswith("__") and not isinstance(member, FunctionType):
            continue
        if isinstance(member, (staticmethod, classmethod)):
            yield name, member.__func__
        elif isinstance(member, property):
            yield from ((name, part) for part in (member.fget, member.fset) if part is not None)
        elif name != "_abc_impl":
            yield name, member
