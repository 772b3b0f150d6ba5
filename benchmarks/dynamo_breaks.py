"""A module with its inputs -> how often torch._dynamo breaks its graph, and where."""

from __future__ import annotations

from typing import Any

import torch


def breaks(target: Any) -> dict[str, Any]:
    """Of the forward pass, on the CPU; a training step is left out, as it holds more than a module."""
    if not isinstance(target, tuple):
        return {"dynamo": None}
    model, fresh = target
    try:
        with torch.no_grad():
            found = torch._dynamo.explain(model)(**fresh())
    except Exception as error:
        return {"dynamo": "raised", "error": f"{type(error).__name__}: {error}"[:200]}
    return {
        "dynamo": found.graph_break_count,
        "breaks": [said(each) for each in found.break_reasons],
    }


def said(reason: Any) -> str:
    """Why, and the nearest line outside torch."""
    place = ""
    for frame in reversed(reason.user_stack or ()):
        if "/torch/" not in frame.filename:
            place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
            break
    return f"{place} {str(reason.reason).splitlines()[0]}"[:160]
