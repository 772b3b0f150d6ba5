"""A module or a training step with its inputs -> where torch._dynamo breaks its graph, and why."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import Any

import torch


def breaks(target: Any) -> dict[str, Any]:
    """On the CPU: the forward pass of a module, or the whole of a training step."""
    step, inputs = target if isinstance(target, tuple) else (target.step, target.inputs)
    try:
        with torch.set_grad_enabled(not isinstance(target, tuple)):
            found = torch._dynamo.explain(step)(**inputs())
    except Exception as error:
        tail = traceback.extract_tb(error.__traceback__)
        return {"dynamo": "raised", "error": words(error), "places": places(tail)}
    told = dict.fromkeys(
        (said(each), tuple(places(each.user_stack or ()))) for each in found.break_reasons
    )
    return {
        "dynamo": found.graph_break_count,
        "breaks": [why for why, _ in told],
        "places": [list(at) for _, at in told],
    }


def said(reason: Any) -> str:
    """Why, and the nearest line outside torch."""
    at = places(reason.user_stack or ())
    return f"{at[0].rpartition('/')[2] if at else ''} {str(reason.reason).splitlines()[0]}"[:160]


def places(stack: Iterable[Any]) -> list[str]:
    """The lines of installed packages, torch left out, innermost first."""
    found = []
    for frame in stack:
        _, inside, rest = frame.filename.rpartition("site-packages/")
        if inside and not rest.startswith("torch/"):
            found.append(f"{rest}:{frame.lineno}")
    return found[::-1]


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
