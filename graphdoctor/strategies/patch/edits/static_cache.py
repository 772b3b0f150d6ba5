"""Gives `generate(...)` a cache of fixed length."""

from __future__ import annotations

import ast
import os

from graphdoctor.strategies.patch.edits.edit import NoProposal, Proposal
from graphdoctor.strategies.patch.source import Argument, At, CannotEdit, source_of
from graphdoctor.values.locations import is_library
from graphdoctor.values.program import Exactness, Handled, ProgramStep

_CACHE = "cache_implementation"
_OTHER_CACHES = frozenset({_CACHE, "past_key_values", "use_cache", "generation_config", None})


class StaticCache:
    """Gives the program's own call of transformers' `generate` a static cache."""

    name = "static cache"
    exactness: Exactness = "rounding"

    def propose(self, step: ProgramStep) -> Proposal:
        _, end = call_with_growing_cache(step)
        return Proposal(
            self.name,
            self.exactness,
            (Argument(end, f'{_CACHE}="static"'),),
            "generate() gets a cache of fixed length, which gives each decode step the same shapes"
            " (GD212); on a GPU, transformers then compiles that step into CUDA graphs",
            captures=False,
            handled=growing_caches(step),
        )


def call_with_growing_cache(step: ProgramStep) -> tuple[ast.Call, At]:
    """The program's call of `generate`, which chooses no cache, and where it ends. Raises NoProposal."""
    caller = step.caller
    in_generate = os.path.join("transformers", "generation", "") in step.location.file
    if caller is None or is_library(caller.file) or not growing_caches(step) or not in_generate:
        raise NoProposal("no call of generate() has a cache that grows")
    call = _generate_call(caller.file, caller.line)
    chooses = any(keyword.arg in _OTHER_CACHES for keyword in call.keywords)
    if chooses or not (call.args or call.keywords):
        raise NoProposal(
            f"the call of generate() in line {call.lineno} chooses its cache by other arguments"
        )
    return call, At.end_of(call, caller.file)


def growing_caches(step: ProgramStep) -> tuple[Handled, ...]:
    """What a cache of fixed length handles."""
    found = step.report.findings if step.report is not None else ()
    return tuple(Handled.of(each, "capture") for each in found if each.rule == "GD212")


def _generate_call(file: str, line: int) -> ast.Call:
    try:
        tree = ast.parse(source_of(file))
    except CannotEdit as reason:
        raise NoProposal(str(reason).rstrip(".")) from None
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    for call in calls:
        is_named = isinstance(call.func, ast.Attribute) and call.func.attr == "generate"
        if is_named and call.lineno <= line <= (call.end_lineno or call.lineno):
            return call
    raise NoProposal(f"line {line} of {os.path.basename(file)} has no call of generate()")
