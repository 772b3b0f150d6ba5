"""`file.py`, `file.py:name` or `package.module:name` -> the target that it describes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from types import ModuleType

import torch

from graphdoctor.target.build import Origin, build
from graphdoctor.target.description import SHAPES, Description, describe, is_step_object
from graphdoctor.target.forms import FORMS, only_module
from graphdoctor.target.forms.form import Form, Source, call
from graphdoctor.target.forms.model_class import init_inputs
from graphdoctor.target.inputs.fresh import Called
from graphdoctor.target.inputs.requested import BatchArgument, InputSpec, parse_input
from graphdoctor.target.outline import Outline, outline
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import instantiate, needed_arguments
from graphdoctor.target.workspace import Workspace, import_module, run_file
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import Mode
from graphdoctor.values.spelling import meant
from graphdoctor.values.target_spec import is_file, split

TEMPLATE = """\
def graphdoctor_target():
    model = MyModel().cuda().eval()
    inputs = (torch.randn(8, 3, 224, 224, device="cuda"),)
    return model, inputs

# or, for training: return step, (data, label)"""


@dataclass(frozen=True, slots=True)
class _Request:
    """What was asked: which object of which file, how to run it, on what inputs and batch size."""

    where: str
    name: str | None
    mode: Mode | None
    specs: tuple[InputSpec, ...]
    batch: BatchArgument


def resolve(
    spec: str, *, mode: Mode | None, inputs: tuple[str, ...], batch: int | None = None
) -> Target:
    """Find, run and read the target. Close it when done: until then its imports stay possible.

    `batch` is given to the file's functions that take a batch size; the target's `sized_by` names
    them. Raises UsageError for what cannot be carried out as asked, UserCodeError for failing user
    code.
    """
    where, name = split(spec)
    specs = tuple(parse_input(text) for text in inputs)
    request = _Request(where, name, mode, specs, BatchArgument(batch))
    found = _of_file(request) if is_file(where) else _of_module(request)
    return replace(found, sized_by=request.batch.taken_by)


def _of_file(request: _Request) -> Target:
    path = Path(request.where)
    found = outline(path)
    _check(found, request)
    workspace = Workspace(path.resolve().parent, request.where)
    return _described(request, workspace, lambda: run_file(path.resolve()), found)


def _of_module(request: _Request) -> Target:
    workspace = Workspace(Path.cwd(), request.where)
    nothing_known = Outline(frozenset(), (), has_star_import=False)
    return _described(request, workspace, lambda: import_module(request.where), nothing_known)


def _described(
    request: _Request, workspace: Workspace, load: Callable[[], ModuleType], found: Outline
) -> Target:
    """Load the user's code and build what it describes; the workspace stays until the target is closed."""
    try:
        source = _source(load(), found, request)
        description, entry = _describe(source, request)
        return build(
            description, _origin(source, request, entry), mode=request.mode, close=workspace.close
        )
    except BaseException:
        workspace.close()
        raise


def _check(found: Outline, request: _Request) -> None:
    """Refuse, before anything runs, a file that cannot have what was asked for."""
    if request.name is not None:
        first = request.name.partition(".")[0]
        if not found.has(first):
            known = sorted(n for n in found.names if not n.startswith("_"))
            there = ", ".join(known) or "nothing"
            raise UsageError(f"{request.where} has no {first}; it has {there}{meant(first, known)}")
        return
    forms = [form for form in FORMS if form.matches(found)]
    if not forms:
        raise no_target(request.where)
    if forms == [only_module.FORM] and not request.specs:
        names = ", ".join(cls.name for cls in found.classes if cls.may_be_module)
        raise UsageError(
            f"{request.where} does not say what the inputs of its model ({names}) are: add "
            f"--input 8x3x224x224:float32, or paste this into it\n\n{TEMPLATE}"
        )


def no_target(where: str) -> UsageError:
    """The error for a file without any target, with something to paste into it."""
    return UsageError(
        f"{where} describes no target; paste this into it, or run it as it is, if it is a program that trains or"
        f" serves, with `graphdoctor run {where}`\n\n{TEMPLATE}"
    )


def _source(module: ModuleType, found: Outline, request: _Request) -> Source:
    live = replace(found, names=frozenset(vars(module)), has_star_import=False)
    return Source(module, live, request.mode, request.specs, request.batch)


def _describe(source: Source, request: _Request) -> tuple[Description, str]:
    if request.name is not None:
        description, entry = describe_named(source, request.name)
    else:
        form = _first_form(source, request)
        description, entry = form.describe(source), form.entry
    return _with_given_inputs(description, request.specs), entry


def _first_form(source: Source, request: _Request) -> Form:
    for form in FORMS:
        if form.matches(source.outline):
            return form
    raise no_target(request.where)


def _with_given_inputs(description: Description, specs: tuple[InputSpec, ...]) -> Description:
    if not specs:
        return description
    drawn = Inputs(tuple(spec.draw() for spec in specs))
    replaced = ("the inputs are those of --input",) if description.inputs is not None else ()
    return replace(description, inputs=drawn, notes=(*description.notes, *replaced))


def _origin(source: Source, request: _Request, entry: str) -> Origin:
    stem = Path(request.where).stem if is_file(request.where) else request.where
    uses_functions = request.mode != "inference"
    return Origin(
        name=stem if request.name is None else f"{stem}:{request.name}",
        file=request.where if is_file(request.where) else source.module.__file__ or "",
        entry=entry,
        train_step=_function(source, "train_step") if uses_functions else None,
        get_optimizer=_function(source, "get_optimizer") if uses_functions else None,
    )


def _function(source: Source, name: str) -> Callable[..., object] | None:
    found = getattr(source.module, name, None)
    return found if inspect.isfunction(found) else None


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
        there = [one for one in vars(source.module) if not one.startswith("_")]
        raise UsageError(f"{source.module.__file__} has no {name}{meant(name, there)}") from None


def _from_class(source: Source, cls: type, name: str) -> Description:
    if issubclass(cls, torch.nn.Module):
        args, kwargs = init_inputs(source) if needed_arguments(cls) else ([], {})
        return Description(instantiate(cls, *args, **kwargs), is_ours=True)
    made = instantiate(cls)
    if not is_step_object(made):
        raise UsageError(
            f"{name} is a class of neither a module nor a step, but a target is {SHAPES}"
        )
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
