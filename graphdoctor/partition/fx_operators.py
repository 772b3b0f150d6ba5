"""Operator names and argument texts of a recording -> what torch knows them as."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from graphdoctor.values.errors import CannotDoItHere
from graphdoctor.values.recording import Op

Path = tuple[int, ...]
_DEVICE = re.compile(r"(?:device\(type='(\w+)'(?:, index=(\d+))?\)|(cpu|cuda|meta)(?::(\d+))?)")
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)


@cache
def operator_named(name: str) -> Callable[..., Any]:
    """The overload "namespace.operator.overload"; a function that cannot run if there is none."""
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    try:
        found: Callable[..., Any] = getattr(
            getattr(getattr(torch.ops, namespace), packet), overload or "default"
        )
    except (AttributeError, RuntimeError):

        def missing(*args: object, **kwargs: object) -> object:
            raise CannotDoItHere(
                f"The graph calls the operator {name}, which is not registered in this process; "
                "import the library that defines it first."
            )

        return _named(name, missing)
    # The code of a torch.fx graph spells the overload out, and "from" cannot be spelt.
    return _named(name, found) if keyword.iskeyword(overload) else found


def _named(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    call.__name__ = call.__qualname__ = re.sub(r"\W", "_", name)
    return call


def bound(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with those that Python has no keyword syntax for ("from") made positional."""
    if not any(keyword.iskeyword(name) for name in kwargs):
        return args, kwargs
    positional, named = list(args), dict(kwargs)
    for argument in _schema_arguments(target)[len(args) :]:
        if argument.kwarg_only or not any(keyword.iskeyword(name) for name in named):
            break
        positional.append(named.pop(argument.name, argument.default_value))
    return tuple(positional), named


def _schema_arguments(target: Callable[..., Any]) -> list[Any]:
    return list(target._schema.arguments) if isinstance(target, torch._ops.OpOverload) else []


def result_paths(target: Callable[..., Any], op: Op) -> tuple[Path, ...]:
    """Where each recorded output tensor lies in what the operator returns; () is the result itself.

    Absent outputs (a gradient that was not asked for) and numbers are not recorded; where the
    schema leaves open which of several tensors is absent, the first ones are taken as present.
    """
    kinds = _return_kinds(target, op)
    if kinds == ["Tensor"]:
        return ((),) * min(1, len(op.outputs))
    lists = kinds.count("Tensor[]")
    if kinds == ["Tensor[]"]:
        return tuple((place,) for place in range(len(op.outputs)))
    each = (len(op.outputs) - kinds.count("Tensor")) // max(1, lists)
    return tuple(_places(kinds, each))[: len(op.outputs)]


def _places(kinds: list[str], each: int) -> Iterator[Path]:
    for place, kind in enumerate(kinds):
        if kind == "Tensor":
            yield (place,)
        elif kind == "Tensor[]":
            yield from ((place, position) for position in range(each))


def _return_kinds(target: Callable[..., Any], op: Op) -> list[str]:
    if not isinstance(target, torch._ops.OpOverload):
        return ["Tensor"] * len(op.outputs)
    kinds = [_kind(returned.type) for returned in target._schema.returns]
    mask = _output_mask(target, op)
    if mask is not None and kinds.count("Tensor") != len(op.outputs):
        kinds = ["Tensor" if wanted else "absent" for wanted in mask]
    return kinds


def _kind(returned: Any) -> str:
    text = str(returned)
    if text in ("Tensor", "Optional[Tensor]"):
        return "Tensor"
    return "Tensor[]" if text.startswith("List[") and "Tensor" in text else "number"


def _output_mask(target: Callable[..., Any], op: Op) -> tuple[bool, ...] | None:
    """Which gradients a backward operator was asked for, where it has such an argument."""
    for argument, value in zip(_schema_arguments(target), op.args, strict=False):
        if argument.name == "output_mask" and isinstance(value, tuple):
            return tuple(bool(wanted) for wanted in value)
    return None


def restored(text: str) -> object:
    """A dtype, layout, memory format or device from its text; other texts stay what they are."""
    if text.startswith("torch."):
        constant = getattr(torch, text.removeprefix("torch."), None)
        return constant if isinstance(constant, _CONSTANTS) else text
    match = _DEVICE.fullmatch(text)
    if match is None:
        return text
    kind, index = match[1] or match[3], match[2] or match[4]
    return torch.device(kind) if index is None else torch.device(kind, int(index))
