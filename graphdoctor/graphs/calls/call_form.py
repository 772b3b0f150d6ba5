"""A call that a graph served -> whether another is of the same form, asked in one call into C++."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from graphdoctor.device.emulated import entered
from graphdoctor.graphs.calls.signature import TENSORS, is_plain_constant
from graphdoctor.graphs.guards.written_out import Question, all_of


class CallForm(NamedTuple):
    """What calls of one form share, asked of `args` and `kwargs`, and the expression of their tensors in order.

    The arguments' number and names, constants by identity, and tensors by dynamo's guards. These tell types,
    shapes, strides, dtypes, devices, dispatch keys, wanted gradients, and whether two are one tensor; so a call
    of this form has the same key, and no gradients of its inputs. Other calls may have the same key too: that
    takes a closer look.
    """

    asks: Question
    tensors: str


def _form(args: tuple[Any, ...], kwargs: Mapping[str, Any], check: Callable[..., bool]) -> CallForm:
    given: dict[str, object] = {"check": check}
    terms = [f"len(args) == {len(args)}"]
    terms.append("(*kwargs,) == names" if kwargs else "not kwargs")
    if kwargs:
        given |= {"names": tuple(kwargs)}
        given |= {f"name{place}": name for place, name in enumerate(kwargs)}
    places = {f"args[{place}]": value for place, value in enumerate(args)}
    places |= {f"kwargs[name{place}]": value for place, value in enumerate(kwargs.values())}
    tensors = [place for place, value in places.items() if type(value) in TENSORS]
    for number, (place, value) in enumerate(places.items()):
        if type(value) not in TENSORS:
            given[f"constant{number}"] = value
            terms.append(f"{place} is constant{number}")
    is_plain = len(tensors) == len(args) == len(places)
    in_order = "args" if is_plain else f"({', '.join(tensors)},)"
    return CallForm(Question(all_of([*terms, f"check(*{in_order})"]), given), in_order)


def form_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm | None:
    """The form of a call; None where it has none.

    That is so where arguments are nested, or one tensor comes twice or wants gradients, and where
    torch has no such guards.
    """
    values = (*args, *kwargs.values())
    tensors = [value for value in values if type(value) in TENSORS]
    others = [value for value in values if type(value) not in TENSORS]
    if not tensors or not all(map(is_plain_constant, others)):
        return None
    if len(set(map(id, tensors))) < len(tensors) or any(t.requires_grad for t in tensors):
        return None  # under no_grad, guards may not tell a tensor that wants gradients
    try:
        guards: Any = torch._C._dynamo.guards.TensorGuards
        check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        if not check(*tensors):
            return None
    except Exception:  # another torch's guards want other arguments
        return None
    if entered() is not None:
        check = _and_devices(check, tensors)
    return _form(args, kwargs, check)


def _and_devices(check: Callable[..., bool], tensors: list[torch.Tensor]) -> Callable[..., bool]:
    """An emulated device is none to C++, so it is asked for in Python."""
    devices = [tensor.device for tensor in tensors]
    return lambda *given: check(*given) and [tensor.device for tensor in given] == devices
