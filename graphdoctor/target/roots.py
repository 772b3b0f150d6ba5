"""The objects whose state a step uses, under the names that the user's code gives them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import FunctionType, MethodType

import torch
from torch.optim import optimizer as optimizers

from graphdoctor.target.frames import is_machinery
from graphdoctor.target.state.attributes import attributes, is_stateful
from graphdoctor.target.state.paths import By
from graphdoctor.target.state.tree import Tree
from graphdoctor.target.state.variables import mentioned
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.target import Inputs

_OF_MODULES = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)
_OF_OPTIMIZERS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def roots_of(step: object) -> dict[str, object]:
    """The modules, optimizers and the like that a step reaches by variables of its functions.

    A module is "model", a bound method's object "self". The step itself comes last: it holds the
    counters, lists and globals that its code uses.
    """
    if isinstance(step, torch.nn.Module):
        return {"model": step}
    if isinstance(step, MethodType):
        return {"self": step.__self__, "step": step.__func__}
    named = dict(_bound_arguments(step))
    for path, value, _ in Walk({"step": step}):
        if path.by is not By.NAME or not is_stateful(value):
            continue
        if not any(value is seen for seen in named.values()):
            named.setdefault(path.own_name, value)
    return {**named, "step": step}


def hooks_of_all() -> dict[str, object]:
    """The user's hooks that run for every module or optimizer, which nothing of a step leads to."""
    found = [
        hook
        for names, module in ((_OF_MODULES, torch.nn.modules.module), (_OF_OPTIMIZERS, optimizers))
        for name in names
        for hook in getattr(module, name, {}).values()
        if not isinstance(hook, FunctionType) or not is_machinery(hook.__code__.co_filename)
    ]
    return {"hooks": tuple(found)} if found else {}


def _bound_arguments(step: object) -> dict[str, object]:
    """What `functools.partial` binds, under the names of the function's parameters."""
    if not isinstance(step, partial) or not isinstance(step.func, FunctionType):
        return {}
    names = step.func.__code__.co_varnames[: step.func.__code__.co_argcount]
    bound = {**dict(zip(names, step.args, strict=False)), **step.keywords}
    return {name: value for name, value in bound.items() if is_stateful(value)}


def roots_among(inputs: Inputs, step: object) -> dict[str, object]:
    """Inputs that carry state: modules, optimizers, caches, functions; named after the step's parameters."""
    code = step.__code__ if isinstance(step, FunctionType) else None
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    named: dict[str, object] = {}
    for index, arg in enumerate(inputs.args):
        name = names[index] if index < len(names) else f"inputs[{index}]"
        named.update(_stateful_leaves(name, arg))
    for name, arg in inputs.kwargs.items():
        named.update(_stateful_leaves(name, arg))
    return named


def _stateful_leaves(name: str, arg: object) -> dict[str, object]:
    leaves = Tree(arg, into_objects=False).leaves(name).values()
    found = [leaf for leaf in leaves if _may_change(leaf)]
    if len(found) == 1:
        return {name: found[0]}
    return {f"{name}[{index}]": leaf for index, leaf in enumerate(found)}


def _may_change(leaf: object) -> bool:
    if isinstance(leaf, torch.Tensor):
        return isinstance(leaf, torch.nn.Parameter)
    if isinstance(leaf, (FunctionType, partial)):
        return True  # its variables may
    return is_stateful(leaf) or (bool(attributes(leaf)) and not callable(leaf))


def trains(step: object, roots: Mapping[str, object]) -> bool:
    """Whether a step trains: it reaches an optimizer, or its own code calls `backward`."""
    if any(isinstance(visit.value, torch.optim.Optimizer) for visit in Walk(roots)):
        return True
    function = step.__func__ if isinstance(step, MethodType) else step
    if isinstance(function, partial):
        function = function.func
    return isinstance(function, FunctionType) and "backward" in mentioned(function.__code__)
