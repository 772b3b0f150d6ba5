"""What the user's code says about a target, before it is made into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType

import torch

from graphdoctor.target.inputs.fresh import STREAMS, Called, in_turn, to_inputs
from graphdoctor.target.target import Inputs
from graphdoctor.target.user_code import user_code
from graphdoctor.values.errors import UsageError

SHAPES = (
    "a module, (module, args), (module, args, kwargs), (step, args), "
    "or an object with step, inputs and state"
)


@dataclass(frozen=True, slots=True)
class Description:
    """A module or a step, where its inputs come from, and the state that the user named.

    `is_ours` says that graphdoctor made the module itself, from its class.
    """

    subject: Callable[..., object]
    inputs: Inputs | Called | None = None
    state: Mapping[str, object] = field(default_factory=dict)
    is_ours: bool = False
    notes: tuple[str, ...] = ()


def describe(value: object, *, what: str) -> Description:
    """Read any of a target's shapes; `what` names it in the message for any other."""
    if isinstance(value, torch.nn.Module):
        return Description(value)
    if isinstance(value, (tuple, list)):
        return _from_tuple(tuple(value), what)
    if is_step_object(value):
        return _from_step_object(value, what)
    kind = "None" if value is None else f"an object of type {type(value).__name__}"
    raise UsageError(f"{what} returned {kind}, but a target is {SHAPES}")


def is_step_object(value: object) -> bool:
    """Whether an object has a step and inputs, as attributes of whatever kind."""
    return not isinstance(value, type) and all(hasattr(value, n) for n in ("step", "inputs"))


def _from_tuple(value: tuple[object, ...], what: str) -> Description:
    if len(value) not in (2, 3) or not callable(value[0]):
        found = ", ".join(type(item).__name__ for item in value)
        raise UsageError(f"{what} returned a tuple of ({found}), but a target is {SHAPES}")
    subject, args = value[0], value[1]
    inputs = _read_inputs(args, what=f"{what}, as its inputs,")
    if len(value) == 3:
        kwargs = value[2]
        if not isinstance(kwargs, Mapping) or not isinstance(inputs, Inputs):
            raise UsageError(
                f"{what} returned {type(kwargs).__name__} where keyword arguments belong"
            )
        inputs = Inputs(inputs.args, {**inputs.kwargs, **kwargs})
    return Description(subject, inputs)


def _from_step_object(value: object, what: str) -> Description:
    with user_code(f"reading step, inputs and state of what {what} returned"):
        step, inputs = value.step, value.inputs  # type: ignore[attr-defined]
        state = getattr(value, "state", None)
    if not callable(step):
        raise UsageError(f"{what} returned an object whose `step` is not callable: {step!r}")
    read = _read_inputs(inputs, what=f"{what}, as its inputs,")
    return Description(step, read, named_state(state))


def _read_inputs(value: object, *, what: str) -> Inputs | Called:
    if isinstance(value, (FunctionType, MethodType)):
        return Called(value, what=f"{value.__name__}()")
    if isinstance(value, partial):
        return Called(value, what="the function for inputs")
    if _is_batches(value):
        return in_turn(value, what=what)  # type: ignore[arg-type]
    return to_inputs(value, what=what)


def _is_batches(value: object) -> bool:
    """A loader, an iterator, or a list of several calls' arguments: tuples, or dicts."""
    if isinstance(value, STREAMS):
        return True
    if not isinstance(value, list) or len(value) < 2:
        return False
    return any(all(isinstance(item, kind) for item in value) for kind in (tuple, dict))


def named_state(state: object) -> dict[str, object]:
    """State by name: as given, or, for a list or one object, after what it is."""
    if state is None:
        return {}
    if isinstance(state, Mapping):
        return {str(name): value for name, value in state.items()}
    named: dict[str, object] = {}
    for value in state if isinstance(state, (list, tuple)) else (state,):
        name = _kind_name(value)
        named[name if name not in named else f"{name}{len(named) + 1}"] = value
    return named


def _kind_name(value: object) -> str:
    if isinstance(value, torch.nn.Module):
        return "model"
    if isinstance(value, torch.optim.Optimizer):
        return "optimizer"
    return "state" if isinstance(value, torch.Tensor) else type(value).__name__.lower()
