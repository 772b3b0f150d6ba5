"""A function of the user's -> what its code asks of tensors beside their values, shapes, strides and dtypes, by name.

A graph reads its own copies of the inputs, which are leaves without gradients or attributes, so that a call whose
inputs would tell otherwise gets no replay; nor does any call after a tensor of the model tells otherwise.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import FunctionType
from typing import NamedTuple

import torch

from graphdoctor.graphs.guards.settings import asked_in
from graphdoctor.graphs.guards.written_out import Question
from graphdoctor.target.state.attributes import attributes
from graphdoctor.target.state.walk import grad_of

Ask = Callable[[torch.Tensor], object]
_ALIGNMENT = 512  # bytes; of what the allocator gives


def _version(tensor: torch.Tensor) -> object:
    return None if tensor.is_inference() else tensor._version


def _gradient(tensor: torch.Tensor) -> object:
    return None if (grad := grad_of(tensor)) is None else (id(grad), grad.data_ptr())


def _storage(tensor: torch.Tensor) -> object:
    return tensor.untyped_storage().nbytes(), tensor.storage_offset()


_BY_NAME: dict[str, Ask] = {
    "_version": _version,
    "is_leaf": lambda tensor: tensor.is_leaf,
    "grad_fn": lambda tensor: type(tensor.grad_fn),
    "grad": _gradient,
    "requires_grad": lambda tensor: tensor.requires_grad,
    "retains_grad": lambda tensor: tensor.retains_grad,
    "_base": lambda tensor: tensor._base is None,
    "_is_view": lambda tensor: tensor._is_view(),
    "is_inference": lambda tensor: tensor.is_inference(),
    "is_shared": lambda tensor: tensor.is_shared(),
    "Parameter": lambda tensor: isinstance(tensor, torch.nn.Parameter),
    "data_ptr": lambda tensor: tensor.data_ptr() % _ALIGNMENT,
    **dict.fromkeys(("storage_offset", "storage", "untyped_storage", "typed_storage"), _storage),
}
# By these code may find out that two tensors share memory.
_TELL_SHARED = frozenset(
    {"data_ptr", "storage", "untyped_storage", "typed_storage", "_cdata", "is_set_to", "_base"}
)
_IDENTITY = frozenset({"id", "is"})
# By these code may live without an attribute.
_MAY_LACK = frozenset({"getattr", "hasattr", "AttributeError", "__dict__", "vars"})
_OF_TENSORS = frozenset(dir(torch.Tensor))


class Traits(NamedTuple):
    """What is asked: of each tensor, by name; of inputs, also attributes, shared memory, and the model's tensors."""

    of_each: dict[str, Ask]
    attributes: frozenset[str]
    tells_shared: bool
    tells_identity: bool

    def __bool__(self) -> bool:
        return any(self)

    def of_inputs(
        self, own: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> list[object]:
        """What inputs of a model with these `own` tensors tell, in the order of `names`."""
        told: list[object] = [[*map(ask, inputs)] for ask in self.of_each.values()]
        if self.attributes:
            told.append([*map(self._attributes_of, inputs)])
        if self.tells_shared:
            memory = [tensor.untyped_storage()._cdata for tensor in inputs]
            told.append([memory.index(each) for each in memory])
            told.append({tensor.untyped_storage()._cdata for tensor in own}.isdisjoint(memory))
        if self.tells_identity:
            told.append(set(map(id, own)).isdisjoint(map(id, inputs)))
        return told

    @property
    def names(self) -> list[str]:
        """What each of the answers is about."""
        told = [f"{name} of an input" for name in self.of_each]
        told += ["the attributes of an input"] * bool(self.attributes)
        told += [
            "which inputs share memory",
            "whether inputs share the model's",
        ] * self.tells_shared
        return told + ["whether an input is a tensor of the model"] * self.tells_identity

    def _attributes_of(self, tensor: torch.Tensor) -> list[str]:
        return [name for name in attributes(tensor) if name in self.attributes]

    def of_own(self, tensors: Sequence[torch.Tensor]) -> dict[str, Callable[[], object]]:
        """How to ask the model's tensors for each; whether they want gradients is asked by the guard itself."""
        return {
            name: partial(_of_all, ask, tensors)
            for name, ask in self.of_each.items()
            if name != "requires_grad"
        }


class OfInputs:
    """What the inputs that a graph reads tell a model with these `own` tensors; other inputs may tell otherwise."""

    def __init__(
        self, traits: Traits, own: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> None:
        self._traits, self._ask = traits, partial(traits.of_inputs, own)
        self._told = self._ask(inputs)

    def question(self, tensors: str) -> Question:
        """Whether inputs, by this expression, tell the same."""
        if not self._traits:
            return Question("True", {})
        return Question(f"told_by({tensors}) == told", {"told_by": self._ask, "told": self._told})

    def difference(self, inputs: Sequence[torch.Tensor]) -> str:
        if not self._traits:
            return ""
        told = zip(self._traits.names, self._told, self._ask(inputs), strict=True)
        found = next((name for name, before, now in told if before != now), None)
        return (
            f"the model's code asks for {found}, and got another answer at the capture"
            if found
            else ""
        )


def _of_all(ask: Ask, tensors: Sequence[torch.Tensor]) -> list[object]:
    return [*map(ask, tensors)]


def traits_read(functions: Iterable[FunctionType]) -> Traits:
    """All that these ask for."""
    names: set[str] = set()
    lacking: set[str] = set()
    for function in functions:
        found = {*asked_in(function), *(["is"] if _compares_identity(function) else [])}
        names |= found
        if not _MAY_LACK.isdisjoint(found):
            lacking |= found - _OF_TENSORS
    return Traits(
        {name: ask for name, ask in _BY_NAME.items() if name in names},
        frozenset(lacking),
        not _TELL_SHARED.isdisjoint(names),
        not _IDENTITY.isdisjoint(names),
    )


def _compares_identity(function: FunctionType) -> bool:
    """Whether it asks if one object is another one, and not a constant."""
    before = ""
    for instruction in dis.get_instructions(function.__code__):
        if instruction.opname == "IS_OP" and not before.startswith(("LOAD_CONST", "LOAD_COMMON")):
            return True
        before = instruction.opname
    return False
