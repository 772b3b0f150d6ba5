"""torchbench's `Model(test=, device=, batch_size=...)`, whose `get_module()` gives both parts."""

from __future__ import annotations

import inspect
from typing import Any

from graphdoctor.target.description import Description
from graphdoctor.target.forms.form import Form, Source, call
from graphdoctor.target.inputs.fresh import to_inputs
from graphdoctor.target.outline import Outline
from graphdoctor.target.user_code import instantiate
from graphdoctor.values.errors import UsageError


def _matches(outline: Outline) -> bool:
    model = outline.class_named("Model")
    if model is None:
        return False
    return "get_module" in model.methods or {"test", "device"} <= model.parameters


def _describe(source: Source) -> Description:
    cls = source.get("Model")
    benchmark: Any = instantiate(cls, **_arguments(cls, source))
    given = call(benchmark.get_module)
    if not isinstance(given, tuple) or len(given) != 2:
        raise UsageError("Model.get_module() must return a module and its example inputs")
    inputs = to_inputs(given[1], what="Model.get_module(), as its inputs,")
    return Description(given[0], inputs)


def _arguments(cls: type, source: Source) -> dict[str, object]:
    """The suite's arguments, as far as this constructor takes them, with its default sizes."""
    wanted: dict[str, object] = {
        "test": "train" if source.mode == "training" else "eval",
        "device": "cuda",
        "batch_size": source.batch.size,
        "extra_args": [],
    }
    taken = inspect.signature(cls).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    if takes_any or "batch_size" in taken:
        source.batch.note("Model", "batch_size")
    return {name: value for name, value in wanted.items() if takes_any or name in taken}


FORM = Form("Model.get_module()", _matches, _describe)
