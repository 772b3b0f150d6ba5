"""A function of the user's -> the global variables that it reads, each with its namespace."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType

from graphdoctor.target.state.variables import Namespace, global_names


def global_reads(function: FunctionType) -> Iterator[tuple[Namespace, str]]:
    """Names that the code loads as globals; of modules of the user's, all that it mentions.

    A name that is an attribute only, as `x` in `self.x`, says nothing about a global `x`.
    """
    loaded = set(_loaded(function.__code__))
    for namespace, names in global_names(function):
        is_own = namespace is function.__globals__
        for name in names:
            if name in namespace and (name in loaded or not is_own):
                yield namespace, name


def _loaded(code: CodeType) -> Iterator[str]:
    waiting = [code]
    while waiting:
        current = waiting.pop()
        for instruction in dis.get_instructions(current):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                yield str(instruction.argval)
        waiting.extend(const for const in current.co_consts if isinstance(const, CodeType))
