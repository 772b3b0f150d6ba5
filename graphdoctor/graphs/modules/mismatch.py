"""The captured signatures and a call that has another one -> which invariant it breaks, in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graphdoctor.graphs.modules.arguments import mode

_SWITCHES = ("grad mode", "autocast", "autocast's dtype")
_OF_TENSOR = ("shape", "dtype", "device", "layout", "stride", "requires_grad")


def explain(
    captured: Collection[tuple[Any, ...]], found: tuple[Any, ...], names: Mapping[int, str]
) -> str:
    """Compare with the captured signature that is nearest; `names` are the tensors' by position."""
    reasons = [_difference(each, found, names) for each in captured]
    return min(reasons, default="nothing is captured", key=len)


def _difference(was: tuple[Any, ...], now: tuple[Any, ...], names: Mapping[int, str]) -> str:
    switches = len(mode(True))
    for name, before, after in zip(_SWITCHES, was[:switches], now[:switches], strict=True):
        if before != after:
            return f"{name} changed from {before} to {after}"
    frozen, tensors, same = was[switches:]
    frozen_now, tensors_now, same_now = now[switches:]
    if len(frozen) != len(frozen_now) or len(tensors) != len(tensors_now):
        return "its arguments are others than the captured ones"
    for before, after in zip(frozen, frozen_now, strict=True):
        if before != after:
            return f"an argument that is no tensor changed from {_short(before)} to {_short(after)}"
    for index, (before, after) in enumerate(zip(tensors, tensors_now, strict=True)):
        for what, old, new in zip(_OF_TENSOR, before, after, strict=True):
            if old != new:
                where = names.get(index, f"tensor {index}")
                return f"the {what} of {where} changed from {_shown(old)} to {_shown(new)}"
    if same != same_now:
        return "other tensors among its arguments are one and the same"
    return "its arguments are others than the captured ones"


def _shown(value: object) -> str:
    return str(tuple(value)) if isinstance(value, tuple) else str(value)


def _short(token: object) -> str:
    value = token[1] if isinstance(token, tuple) and len(token) == 2 else type(token).__name__
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
