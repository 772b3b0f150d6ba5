"""Operators in, numbers out: equal ones for calls that one graph could stand for."""

from __future__ import annotations

from graphdoctor.values.recording import Arg, Iteration, Leaf, Op, Opaque, TensorUse


class Signatures:
    """Numbers the calls of a recording by name, module, shapes, dtypes, devices and scalars."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._known: dict[int, tuple[int, ...]] = {}

    def of(self, iteration: Iteration) -> tuple[int, ...]:
        """The number of each operator of the iteration, by position."""
        if iteration.index not in self._known:
            self._known[iteration.index] = tuple(map(self._number, iteration.ops))
        return self._known[iteration.index]

    def _number(self, op: Op) -> int:
        kwargs = tuple((name, _form(arg)) for name, arg in op.kwargs)
        signature = (op.name, op.module, _form(op.args), kwargs)
        return self._numbers.setdefault(signature, len(self._numbers))


def input_signature(iteration: Iteration) -> tuple[object, ...]:
    """What has to be equal for two iterations to be expected to run the same graph."""
    return tuple(map(_leaf_form, iteration.inputs))


def _leaf_form(leaf: Leaf) -> object:
    return leaf.path if isinstance(leaf.value, str) else (leaf.path, _form(leaf.value))


def _form(arg: Arg) -> object:
    if isinstance(arg, TensorUse):
        return arg.shape, arg.dtype, arg.device
    if isinstance(arg, tuple):
        return tuple(map(_form, arg))
    if isinstance(arg, Opaque):
        return arg.text if " at 0x" not in arg.text else ""  # an address is not a difference
    return type(arg), repr(arg)  # -0.0 and 0, 1 and True are different, nan is equal to itself
