"""A random draw and what it is compared with -> whether the outcome is the same for every draw."""

from __future__ import annotations

from graphdoctor.values.recording import Op, TensorUse

# [0, 1), as torch.rand's documentation says, in every floating-point type.
_UNIFORM = frozenset({"rand", "rand_like"})
# A bound nearer to 0 may become 0 in the draw's type: half's smallest number above 0 is 2 ** -24.
_BELOW_ZERO = -(2.0**-24)
# The largest bound up to which the outcome is the same for every draw; 0 is itself a draw.
_BOUNDS_BELOW = {
    "lt": 0.0,
    "ge": 0.0,
    "le": _BELOW_ZERO,
    "gt": _BELOW_ZERO,
    "eq": _BELOW_ZERO,
    "ne": _BELOW_ZERO,
}


def is_uniform_draw(op: Op) -> bool:
    """Whether an operator makes new numbers of [0, 1)."""
    return op.base_name in _UNIFORM and not op.writes


def is_settled(op: Op) -> bool:
    """Whether an operator compares its operand with a number that lies outside [0, 1), on one side."""
    below = _BOUNDS_BELOW.get(op.base_name)
    if below is None or op.writes or len(op.args) != 2:
        return False
    operand, bound = op.args
    if not isinstance(operand, TensorUse) or not isinstance(bound, int | float):
        return False
    return bound <= below or bound >= 1.0
