"""An expression over given objects -> a function that tells whether it holds, compiled as if written by hand.

What is asked before each replay is short and known at the capture. Written out, each question takes one
call; a loop over a list of them takes that and another half of it, and the loop's own set-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

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


def written_out(
    expression: str, given: Mapping[str, object], *, parameters: str = ""
) -> Callable[..., bool]:
    """The function. It answers False where the expression cannot be evaluated.

    The expression is made of names, operators and constants of ours alone, never of a user's text.
    """
    used = [name for name in compile(expression, "<guard>", "eval").co_names if name in given]
    names = ", ".join(used)
    source = _SOURCE.format(names=names, parameters=parameters, expression=expression)
    scope: dict[str, Any] = {}
    exec(source, scope)
    holds: Callable[..., bool] = scope["made"](*map(given.__getitem__, used))
    return holds


def in_parts(terms: list[str], given: dict[str, Any]) -> list[str]:
    """As many terms as one function may have, which stand for all of these; what they need is added to `given`.

    Compiling takes the square of the length of a function: 44 s for 50,000 terms, and 2 s in parts.
    """
    if len(terms) <= _MOST:
        return terms
    parts = [terms[start : start + _MOST] for start in range(0, len(terms), _MOST)]
    for place, part in enumerate(parts):
        given[f"part{place}"] = written_out(all_of(part), given)
    return [f"part{place}()" for place in range(len(parts))]


def all_of(terms: Iterable[str]) -> str:
    """The expression that holds where all of these do."""
    return " and ".join(terms) or "True"
