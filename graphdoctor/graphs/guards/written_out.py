"""What is asked before each replay, as an expression over given objects -> a function, compiled as if written by hand.

All of it is short and known at the capture. Written out, each question takes one call; a loop over a
list of them takes that and another half of it, and each function around some of them a call of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

_FILE = os.path.join(os.path.dirname(__file__), "<written out>")  # its frames are no user's
_MOST = 1_000
_SOURCE = """
def made({names}):
    def holds({parameters}):
        try:
            return {expression}
        except Exception:
            return False
    return holds
"""


class Question(NamedTuple):
    """An expression, and what its names stand for.

    It is made of names, operators and constants of ours alone, never of a user's text. Where it cannot be
    evaluated, it does not hold.
    """

    expression: str
    given: Mapping[str, object]


def written_out(question: Question, *, parameters: str = "") -> Callable[..., bool]:
    """The function that answers a question by itself."""
    holds: Callable[..., bool] = filled_in(
        _SOURCE, question.given, parameters=parameters, expression=question.expression
    )
    return holds


def filled_in(source: str, given: Mapping[str, object], **parts: str) -> Any:
    """What `made` of this source gives for these objects, with the parts in their places."""
    scope: dict[str, Any] = {}
    exec(_compiled(source.format(names=", ".join(given), **parts)), scope)
    return scope["made"](**given)


@lru_cache(maxsize=64)
def _compiled(source: str) -> CodeType:
    """Forms of calls differ in their objects far more often than in their source, which takes 1 ms."""
    return compile(source, _FILE, "exec")


def in_parts(terms: Sequence[str], given: Mapping[str, object]) -> Question:
    """Whether all terms hold, in as many functions as it takes.

    Compiling takes the square of the length of a function: 44 s for 50,000 terms, and 2 s in parts.
    """
    if len(terms) <= _MOST:
        return Question(all_of(terms), given)
    parts = [terms[start : start + _MOST] for start in range(0, len(terms), _MOST)]
    functions = {
        f"part{place}": written_out(_with_its_names(all_of(part), given))
        for place, part in enumerate(parts)
    }
    return Question(all_of(f"{name}()" for name in functions), functions)


def _with_its_names(expression: str, given: Mapping[str, object]) -> Question:
    names = compile(expression, _FILE, "eval").co_names
    return Question(expression, {name: given[name] for name in names if name in given})


def all_of(terms: Iterable[str]) -> str:
    """The expression that holds where all of these do."""
    return " and ".join(terms) or "True"
