"""Tensors at a capture -> whether each lies where it lay, and as it lay: a graph reads addresses and strides."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from graphdoctor.graphs.addresses import are_at
from graphdoctor.graphs.guards.written_out import Question, all_of
from graphdoctor.graphs.ways import Ways

_address = torch.Tensor.data_ptr
_FEW = 16  # asked one by one, which is quicker for so many


class Lying:
    """Where tensors lie, and how. Keeps their memory, so that no graph reads what was freed."""

    def __init__(self, paths: list[str], tensors: list[torch.Tensor]) -> None:
        self.paths, self._tensors = paths, tensors
        self._addresses: list[int | None] = list(map(_address, tensors))
        self._storages = [tensor.untyped_storage() for tensor in tensors]
        self._ways = Ways(tensors)

    @property
    def question(self) -> Question:
        """Whether all lie as they did."""
        if not self._tensors:
            return Question("True", {})
        at, given = self._asks_addresses()
        known = "(ways.is_known(*every_tensor) or ways.look(tensors))"
        all_given = {**given, "ways": self._ways, "tensors": self._tensors}
        # A list would be copied into a tuple for the call.
        return Question(f"{at} and {known}", {**all_given, "every_tensor": tuple(self._tensors)})

    def _asks_addresses(self) -> tuple[str, dict[str, object]]:
        if len(self._tensors) > _FEW:
            given = {"addresses": self._addresses, "every": list(range(len(self._tensors)))}
            return "are_at(tensors, addresses, every)", {"are_at": are_at, **given}
        terms: list[str] = []
        few: dict[str, object] = {}
        for place, (tensor, address) in enumerate(zip(self._tensors, self._addresses, strict=True)):
            terms.append(f"address_of{place}() == address{place}")
            few |= {f"address_of{place}": tensor.data_ptr, f"address{place}": address}
        return all_of(terms), few

    def differences(self) -> Iterator[str]:
        every = zip(self.paths, self._tensors, self._addresses, strict=True)
        for place, (path, tensor, address) in enumerate(every):
            if tensor.data_ptr() != address:
                yield f"{path} lies in other memory than when it was captured"
            for name, before, now in self._ways.differences(place, tensor):
                yield f"the {name} of {path} changed from {before} to {now}"
