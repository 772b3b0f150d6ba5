"""One object of a file, by its name -> what it describes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import torch

from graphdoctor.target.description import SHAPES, Description, describe, is_step_object
from graphdoctor.target.forms.form import Source, call
from graphdoctor.target.forms.model_class import init_inputs
from graphdoctor.target.inputs.fresh import Called
from graphdoctor.target.instantiate import instantiate, needed_arguments
from graphdoctor.values.errors import UsageError


def describe_named(source: Source, name: str) -> tuple[Description, str]:
    """A module or its class, a function that returns a target, a step, or an object with parts."""
    value = source.batch.bound(_find(source, name), name)
    if isinstance(value, type):
        description, entry = _from_class(source, value, name), f"{name}()"
    elif inspect.isroutine(value) and not is_step_object(value):
        description, entry = _from_function(source, value, name)
    elif callable(value) and not isinstance(value, torch.nn.Module) and not is_step_object(value):
        description, entry = Description(value), name
    else:
        description, entry = describe(value, what=name), name
    if description.inputs is None and not source.specs:
        description = replace(description, inputs=_inputs_beside(source))
    return description, entry


def _find(source: Source, name: str) -> object:
    try:
        return reduce(getattr, name.split("."), source.module)
    except AttributeError:
        raise UsageError(f"{source.module.__file__} has no {name}") from None


def _from_class(source: Source, cls: type, name: str) -> Description:
    if issubclass(cls, torch.nn.Module):
        args, kwargs = init_inputs(source) if needed_arguments(cls) else ([], {})
        return Description(instantiate(cls, *args, **kwargs), is_ours=True)
    made = instantiate(cls)
    if not is_step_object(made):
        raise UsageError(f"{name} is a class of something else, but a target is {SHAPES}")
    return describe(made, what=f"{name}()")


def _from_function(
    source: Source, function: Callable[..., object], name: str
) -> tuple[Description, str]:
    """A function without parameters gives a target; one with parameters is a step."""
    if needed_arguments(function):
        return Description(function), name
    return describe(call(function), what=f"{name}()"), f"{name}()"


def _inputs_beside(source: Source) -> Called | None:
    for name in ("get_inputs", "get_example_inputs"):
        if source.outline.has(name):
            return source.called(name)
    return None
