"""`get_eager_model()` + `get_example_inputs()`: functions, or methods of one class."""

from __future__ import annotations

from graphdoctor.target.description import Description
from graphdoctor.target.forms.form import Form, Source, call
from graphdoctor.target.inputs.fresh import Called
from graphdoctor.target.outline import Outline
from graphdoctor.target.user_code import instantiate
from graphdoctor.values.errors import UsageError

_NAMES = ("get_eager_model", "get_example_inputs")


def _classes(outline: Outline) -> list[str]:
    return [cls.name for cls in outline.classes if cls.methods.issuperset(_NAMES)]


def _matches(outline: Outline) -> bool:
    return outline.has(*_NAMES) or len(_classes(outline)) == 1


def _describe(source: Source) -> Description:
    if source.outline.has(*_NAMES):
        holder: object = source.module
    else:
        holder = instantiate(source.get(_classes(source.outline)[0]))
    model = call(getattr(holder, _NAMES[0]))
    if not callable(model):
        raise UsageError(
            f"{_NAMES[0]}() returned an object of type {type(model).__name__}, which is no module"
        )
    return Description(model, Called(getattr(holder, _NAMES[1]), what=f"{_NAMES[1]}()"))


FORM = Form("get_eager_model() + get_example_inputs()", _matches, _describe)
