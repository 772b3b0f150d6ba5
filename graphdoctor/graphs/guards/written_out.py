"""An expression over given objects -> a function that tells whether it holds, compiled as if written by hand.

What is asked before each replay is short and known at the capture. Written out, each question takes one
call; a loop over a list of them takes that and another half of it, and the loop's own set-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
    names = ", ".join(given)
    source = _SOURCE.format(names=names, parameters=parameters, expression=expression)
    scope: dict[str, Any] = {}
    exec(source, scope)
    holds: Callable[..., bool] = scope["made"](**given)
    return holds


def all_of(terms: Iterable[str]) -> str:
    """The expression that holds where all of these do."""
    return " and ".join(terms) or "True"
