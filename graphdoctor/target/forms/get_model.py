"""`get_model()` beside `get_inputs()`."""

from __future__ import annotations

from dataclasses import replace

from graphdoctor.target.description import Description, describe
from graphdoctor.target.forms.form import Form, Source, call


def _describe(source: Source) -> Description:
    described = describe(call(source.get("get_model")), what="get_model()")
    return replace(described, inputs=source.called("get_inputs"))


FORM = Form(
    "get_model() + get_inputs()",
    lambda outline: outline.has("get_model", "get_inputs"),
    _describe,
)
