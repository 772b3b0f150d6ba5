"""Operators in, their costs out, each computed once however often a model repeats it."""

from __future__ import annotations

from functools import lru_cache

from graphdoctor.estimate.costs import OpCost, op_cost
from graphdoctor.estimate.gpus import DeviceProfile
from graphdoctor.values.recording import Arg, Op, TensorUse

Key = tuple[object, ...]
_MOST = 200_000  # different operators; no model has so many


class KnownCosts:
    """The costs on one GPU. Equal are operators that differ in their storages' numbers only."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile
        self._known: dict[Key, OpCost] = {}

    def cost(self, op: Op, *, autograd: bool) -> OpCost:
        key = (autograd, _key(op))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            found = self._known[key] = op_cost(op, self._profile, autograd=autograd)
        return found


@lru_cache(maxsize=4)
def known_costs(profile: DeviceProfile) -> KnownCosts:
    return KnownCosts(profile)


def _key(op: Op) -> Key:
    numbers: dict[int, int] = {}
    parts = tuple(_part(arg, numbers) for arg in op.args)
    named = tuple((name, _part(arg, numbers)) for name, arg in op.kwargs)
    outputs = tuple(_part(use, numbers) for use in op.outputs)
    writes = tuple(numbers.setdefault(storage, len(numbers)) for storage in op.writes)
    return (op.name, op.device, op.phase, op.tags, parts, named, outputs, writes)


def _part(arg: Arg, numbers: dict[int, int]) -> object:
    """The argument without what makes no difference; 1, 1.0 and True are kept apart."""
    if isinstance(arg, TensorUse):
        number = numbers.setdefault(arg.storage, len(numbers))
        return (number, arg.shape, arg.stride, arg.dtype, arg.device, arg.itemsize)
    if isinstance(arg, tuple):
        return tuple(_part(item, numbers) for item in arg)
    return arg if isinstance(arg, bool) else type(arg)
