"""Make a target of the object that a Python caller passes."""

from __future__ import annotations

import inspect
from dataclasses import replace

import torch

from graphdoctor.target.build import Origin, build
from graphdoctor.target.description import Description, describe, is_step_object
from graphdoctor.target.forms import call
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import instantiate
from graphdoctor.values.report import Mode


def from_object(obj: object, *args: object, mode: Mode | None = None, **kwargs: object) -> Target:
    """A module or step with its inputs, or a function that returns what a target may be.

    A function alone is called and gives the target; with inputs, it is the step itself.
    """
    inputs = Inputs(args, kwargs) if args or kwargs else None
    description, entry = _describe(obj, inputs)
    if inputs is not None:
        description = replace(description, inputs=inputs)
    origin = Origin(_name_of(obj), _file_of(obj), entry)
    return build(description, origin, mode=mode, close=lambda: None)


def _describe(obj: object, inputs: Inputs | None) -> tuple[Description, str]:
    name = _name_of(obj)
    if isinstance(obj, torch.nn.Module):
        return Description(obj), "the given module"
    if isinstance(obj, type):
        made = instantiate(obj)
        is_ours = isinstance(made, torch.nn.Module)
        return replace(describe(made, what=f"{name}()"), is_ours=is_ours), f"{name}()"
    if isinstance(obj, (tuple, list)) or is_step_object(obj) or not callable(obj):
        return describe(obj, what=name), "the given object"
    if inputs is not None:
        return Description(obj), "the given step"
    return describe(call(obj), what=f"{name}()"), f"{name}()"


def _name_of(obj: object) -> str:
    named = obj if inspect.isroutine(obj) or isinstance(obj, type) else type(obj)
    return str(getattr(named, "__name__", type(obj).__name__))


def _file_of(obj: object) -> str:
    """The file that defines an object, or "" where it has none, as in a notebook."""
    named = obj if inspect.isroutine(obj) or isinstance(obj, type) else type(obj)
    try:
        return inspect.getsourcefile(named) or ""
    except (TypeError, OSError):
        return ""
