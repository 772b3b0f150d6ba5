"""The registry: which family an object belongs to. A new family is a class in one file and a line here."""

from __future__ import annotations

from graphdoctor.target.state.kinds import (
    callables,
    containers,
    objects,
    plain_values,
    tensors,
)
from graphdoctor.target.state.kinds.kind import Digest, Kind

# The first that includes a type has it. What a user's subclass adds to a family's is the family's to treat.
FAMILIES: tuple[type[Kind], ...] = (
    plain_values.Scalar,
    tensors.Tensor,
    objects.ScriptModule,
    objects.Module,
    objects.Optimizer,
    containers.Dict,
    containers.List,
    containers.Tuple,
    containers.Deque,
    containers.Set,
    containers.Fixed,
    callables.Function,
    callables.Method,
    callables.Cell,
    callables.Partial,
    callables.Class,
    callables.Reference,
    plain_values.EnumMember,
    plain_values.Number,
    plain_values.RandomGenerator,
    plain_values.NumpyScalar,
    plain_values.Array,
    objects.Inert,
    objects.Thread,
    objects.Queue,
    objects.Object,
)
_BY_TYPE: dict[type, Kind] = {}


def kind_of(value: object) -> Kind:
    """By its true type: `__class__` may be a property of the user's, or a proxy's answer for another object."""
    cls = type(value)
    kind = _BY_TYPE.get(cls)
    if kind is None:
        family = next(family for family in FAMILIES if family.includes(cls, value))
        kind = _BY_TYPE[cls] = family(cls)
    return kind


def digest(value: object) -> Digest | None:
    """What differs where the state of one object does; None of one that only leads to others."""
    return kind_of(value).digest(value)
