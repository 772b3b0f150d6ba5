"""A class `Model` beside `get_inputs()`, and `get_init_inputs()` for its constructor."""

from __future__ import annotations

from graphdoctor.target.description import Description
from graphdoctor.target.forms.form import Form, Source, call
from graphdoctor.target.user_code import instantiate
from graphdoctor.values.errors import UsageError


def _describe(source: Source) -> Description:
    args, kwargs = init_inputs(source)
    model = instantiate(source.get("Model"), *args, **kwargs)
    return Description(model, source.called("get_inputs"), is_ours=True)


def init_inputs(source: Source) -> tuple[list[object], dict[str, object]]:
    """Both published forms: a list of arguments, or `[[arguments], {named arguments}]`."""
    if not source.outline.has("get_init_inputs"):
        return [], {}
    given = call(source.get("get_init_inputs"))
    if isinstance(given, dict):
        return [], given
    if not isinstance(given, (list, tuple)):
        raise UsageError(
            f"get_init_inputs() returned an object of type {type(given).__name__}, but it must return "
            f"a list of the constructor's arguments, or [[arguments], {{named arguments}}]"
        )
    if len(given) == 2 and isinstance(given[0], (list, tuple)) and isinstance(given[1], dict):
        return list(given[0]), given[1]
    return list(given), {}


FORM = Form("Model + get_inputs()", lambda outline: outline.has("Model", "get_inputs"), _describe)
