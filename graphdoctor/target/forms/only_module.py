"""The file's only nn.Module class without required arguments, with inputs from `--input`."""

from __future__ import annotations

import torch

from graphdoctor.target.description import Description
from graphdoctor.target.forms.form import Form, Source
from graphdoctor.target.outline import Outline
from graphdoctor.target.user_code import instantiate, needed_arguments
from graphdoctor.values.errors import UsageError


def _matches(outline: Outline) -> bool:
    return any(cls.may_be_module for cls in outline.classes)


def _describe(source: Source) -> Description:
    classes = [cls for cls in vars(source.module).values() if _is_own_module(cls, source)]
    free = [cls for cls in classes if not needed_arguments(cls)]
    if not classes:
        raise UsageError(f"{source.module.__file__} defines no nn.Module and no target")
    if not free:
        cls = classes[0]
        raise UsageError(
            f"{cls.__name__} needs {', '.join(needed_arguments(cls))} for its constructor; "
            f"write a graphdoctor_target() that makes it"
        )
    if len(free) > 1:
        names = ", ".join(cls.__name__ for cls in free)
        raise UsageError(
            f"{source.module.__file__} has several modules ({names}); "
            f"name one, such as file.py:{free[0].__name__}"
        )
    return Description(instantiate(free[0]), is_ours=True)


def _is_own_module(value: object, source: Source) -> bool:
    is_module = isinstance(value, type) and issubclass(value, torch.nn.Module)
    return is_module and value.__module__ == source.module.__name__


FORM = Form("the only nn.Module + --input", _matches, _describe)
