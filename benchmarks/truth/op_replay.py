"""A captured sample -> whether a replay on fresh values computes what eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from op_graph import first_line
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def replayed(captured: tuple[Any, Any], with_what: Any, *, random: bool) -> dict[str, Any]:
    graph, outputs = captured
    sample, fresh, call = with_what
    statics, values = tensors(sample.arguments), tensors(fresh.arguments)
    if (reason := _unlike(statics, values)) is not None:
        return {"replay": f"skipped: {reason}"}
    if random:
        return {"replay": "skipped: random or without values"}
    try:
        first = _host(call())
        sources = [value.detach().clone() for value in values]
        expected = _eager(call, statics, sources)
        if _difference(expected, _eager(call, statics, sources)) is not None:
            return {"replay": "skipped: eager disagrees with itself"}
        _set(statics, sources)
        graph.replay()
        torch.cuda.synchronize()
        difference = _difference(expected, _host(outputs))
    except Exception as error:
        return {"replay": f"skipped: {first_line(error)}"}
    changes = _difference(expected, first) is not None
    if difference is None:
        return {"replay": "equal", "fresh_changes_result": changes}
    return {"replay": "different", "difference": difference, "fresh_changes_result": changes}


def _unlike(statics: list[torch.Tensor], values: list[torch.Tensor]) -> str | None:
    if len(statics) != len(values):
        return "another number of tensors"
    for static, value in zip(statics, values, strict=True):
        if static.layout != torch.strided:
            return "not a strided tensor"
        if (static.shape, static.dtype) != (value.shape, value.dtype):
            return "fresh values have other shapes"
    return None


def _eager(call: Callable[[], Any], statics: list[torch.Tensor], sources: Any) -> Any:
    _set(statics, sources)
    return _host(call())


def _set(statics: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for static, source in zip(statics, sources, strict=True):
            static.detach().copy_(source)


def _host(tree: Any) -> Any:
    """Plain tensors on the host, so that comparing them launches nothing."""
    flat, spec = tree_flatten(tree)
    moved = [
        leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in flat
    ]
    return tree_unflatten(moved, spec)


def _difference(expected: Any, actual: Any) -> str | None:
    try:
        torch.testing.assert_close(
            tree_map(_comparable, actual), tree_map(_comparable, expected), equal_nan=True
        )
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        return first_line(error)
    return None


def _comparable(leaf: Any) -> Any:
    return leaf if isinstance(leaf, (torch.Tensor, int, float, complex, bool)) else str(leaf)
