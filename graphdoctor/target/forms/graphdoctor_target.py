"""`graphdoctor_target()`, which returns the target itself in any of its shapes."""

from __future__ import annotations

from graphdoctor.target.description import Description, describe
from graphdoctor.target.forms.form import Form, Source, call

_NAME = "graphdoctor_target"


def _describe(source: Source) -> Description:
    return describe(call(source.get(_NAME)), what=f"{_NAME}()")


FORM = Form(f"{_NAME}()", lambda outline: outline.has(_NAME), _describe)
