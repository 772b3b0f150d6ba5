"""Gives `generate(...)` a static cache that is kept, and replays its decode steps."""

from __future__ import annotations

import ast

from graphdoctor.strategies.patch.edits.capture_model import binding_of
from graphdoctor.strategies.patch.edits.capture_step import CAPTURE
from graphdoctor.strategies.patch.edits.edit import NoProposal, Proposal
from graphdoctor.strategies.patch.edits.static_cache import call_with_growing_cache, growing_caches
from graphdoctor.strategies.patch.source import (
    Above,
    Argument,
    Below,
    Import,
    source_of,
    top_statement,
)
from graphdoctor.target.program.names import names_in_file
from graphdoctor.values.program import Exactness, ProgramStep

_FUNCTION = "static_cache"
# A new cache in each call would need a new graph.
_CODE = f'''\
_caches = {{}}


def {_FUNCTION}(model, batch_size, length):
    """An empty cache for generate(): the same one in each call of about this length."""
    key = model, batch_size, -(-length // 64) * 64
    if key not in _caches:
        _caches[key] = StaticCache(config=model.config, max_cache_len=key[2])
    _caches[key].reset()
    return _caches[key]
'''
_SEVERAL = frozenset({"num_beams", "num_return_sequences", "assistant_model", "custom_generate"})


class CaptureGenerate:
    """Gives `generate` a static cache of the program's own, and the captured forward where it takes a compiled one."""

    name = "capture generate()"
    exactness: Exactness = "rounding"

    def propose(self, step: ProgramStep) -> Proposal:
        call, end = call_with_growing_cache(step)
        assert isinstance(call.func, ast.Attribute)
        model, text = ast.unparse(call.func.value), source_of(end.file)
        module = next((m for m in step.modules if m.expression == model), None)
        if module is None or module.file != end.file:
            raise NoProposal(f"no statement of the file binds `{model}`")
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        prompt = call.args[0] if call.args else given.get("input_ids", given.get("inputs"))
        if not isinstance(prompt, (ast.Name, ast.Attribute, ast.Subscript)) or _SEVERAL & {*given}:
            raise NoProposal("the call of generate() does not say how many tokens one cache holds")
        tokens = ast.unparse(prompt)
        if (count := given.get("max_new_tokens")) is not None:
            length = f"{tokens}.shape[1] + {ast.unparse(count)}"
        elif (longest := given.get("max_length")) is not None:
            length = ast.unparse(longest)
        else:
            raise NoProposal("the call of generate() does not say how many tokens it makes")
        if {_FUNCTION, "_caches"} & names_in_file(text):
            raise NoProposal(f"the name {_FUNCTION} is taken")
        bound = binding_of(module)
        forward = f"lambda config, decode=graphdoctor.capture({model}.forward): decode"
        return Proposal(
            self.name,
            self.exactness,
            (
                Import(end.file, CAPTURE.imports),
                Import(end.file, "from transformers import StaticCache"),
                Above(top_statement(end.file, text, min(bound.line, call.lineno)), _CODE),
                Below(bound, f"{model}.get_compiled_call = {forward}"),
                Argument(end, f"past_key_values={_FUNCTION}({model}, {tokens}.shape[0], {length})"),
            ),
            "generate() gets a cache of fixed length (GD212), which is kept for the next call, and its"
            " decode steps are replayed as a graph",
            handled=growing_caches(step),
        )
