"""Tensors at fixed addresses that a graph reads, and new values for them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from graphdoctor.graphs.graphed_callable import copy_into
from graphdoctor.target.state.clone import is_overlapping
from graphdoctor.target.state.tree import input_leaves
from graphdoctor.target.target import Inputs
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.figures import shortened


class InputMismatch(GraphDoctorError):
    """Inputs that a captured graph cannot be given: something that it froze is different."""


class StaticInputs:
    """The tensors that a graph reads, to be filled with other calls' values."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self._loaded: Inputs | None = None
        self._values: list[torch.Tensor] = []
        self._copy = copy_into(())

    def load(self, fresh: Inputs) -> None:
        """Copy the values of `fresh` into place.

        The same call is checked once: loaded again, as it is while a replay is timed, it costs what
        copying costs. Raises `InputMismatch`, and copies nothing, where it differs in anything but
        values of tensors.
        """
        if fresh is not self._loaded:
            pairs = list(filter(None, _checked_pairs(self.inputs, fresh)))
            # Not before: a cache among the inputs holds other tensors once it is restored.
            self._copy = copy_into([static for static, _ in pairs])
            self._values = [values.detach() for _, values in pairs]
            self._loaded = fresh
        with torch.no_grad():
            self._copy(self._values)


def check_inputs(static: Inputs, fresh: Inputs) -> None:
    """Raise `InputMismatch` where two calls differ in anything but values of tensors."""
    _checked_pairs(static, fresh)


def _checked_pairs(static: Inputs, fresh: Inputs) -> list[tuple[torch.Tensor, torch.Tensor] | None]:
    old, new = input_leaves(static), input_leaves(fresh)
    missing = [path for path in old if path not in new]
    added = [path for path in new if path not in old]
    if missing:
        raise InputMismatch(f"The graph was captured with {missing[0]}, which these inputs lack.")
    if added:
        raise InputMismatch(f"The graph was captured without {added[0]}, which these inputs have.")
    return [_checked_pair(path, old[path], new[path]) for path in old]


def _checked_pair(path: str, old: object, new: object) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The tensors to copy between; None for a leaf that is not a tensor, which must be equal."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        for what, before, after in _invariants(old, new):
            if before != after:
                raise InputMismatch(
                    f"The {what} of {path} changed from {before} to {after}: "
                    f"a graph is captured for one {what}."
                )
        return old, new
    if type(old) is not type(new):
        raise InputMismatch(
            f"{path} changed from {type(old).__name__} to {type(new).__name__}: "
            "a graph keeps what it was captured with."
        )
    if not is_same_value(old, new):
        raise InputMismatch(
            f"{path} changed from {_short(old)} to {_short(new)}: "
            "a value that is not a tensor is frozen in the graph."
        )
    return None


def _invariants(old: torch.Tensor, new: torch.Tensor) -> Iterator[tuple[str, object, object]]:
    yield "shape", tuple(old.shape), tuple(new.shape)
    yield "dtype", old.dtype, new.dtype
    yield "device", old.device, new.device
    yield "layout", old.layout, new.layout
    if is_overlapping(old):
        # Elements that share memory cannot take values that do not.
        yield "stride", old.stride(), new.stride()


def is_same_value(old: object, new: object) -> bool:
    """Equality of two leaves that are not tensors; False where they cannot be compared."""
    if old is new:
        return True
    try:
        if hasattr(old, "__array__"):
            return bool((old == new).all())  # type: ignore[attr-defined]
        return bool(old == new) or (old != old and new != new)
    except Exception:  # the comparison is the user's code
        return False


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # so is __repr__
        return type(value).__name__
    return shortened(text)
