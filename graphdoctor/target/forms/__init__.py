"""The ways in which a file may describe its model, in the order in which they are tried."""

from __future__ import annotations

from graphdoctor.target.forms import (
    eager_model,
    get_model,
    graphdoctor_target,
    model_class,
    only_module,
    torchbench,
)
from graphdoctor.target.forms.form import Form

FORMS: tuple[Form, ...] = (
    graphdoctor_target.FORM,
    get_model.FORM,
    model_class.FORM,
    torchbench.FORM,
    eager_model.FORM,
    only_module.FORM,
)

__all__ = ["FORMS"]
