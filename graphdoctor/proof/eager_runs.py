"""The eager iterations that are recorded -> digests of what each left behind: an eager twin that has run already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.utils._python_dispatch import _disable_current_modes

from graphdoctor.graphs.compare import dense_bits, local_part
from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.record import Session
from graphdoctor.target.state.saved_tensor import contents_of
from graphdoctor.target.state.shared_memory import address_of, lies_on_cpu
from graphdoctor.target.state.snapshot import Snapshot
from graphdoctor.target.target import Inputs


@dataclass(frozen=True, slots=True)
class EagerRuns:
    """The session's iterations in order, from its start and with its own random numbers.

    Bits are compared with these, so only where eager repeats itself bit for bit, as on the emulated
    device. Replays that start there, with these inputs, must leave the same bits behind.
    """

    session: Session
    digests: list[Digest] = field(default_factory=list)
    hosts: list[Mapping[str, object]] = field(default_factory=list)  # Python state after each

    def look(self, inputs: Inputs, outputs: object) -> None:
        """Note what an iteration has just left behind; what was noted of as many before was not eager's."""
        if len(self.digests) == len(self.session.batches):
            self.digests.clear()
            self.hosts.clear()
        seen = footprint(self.session.target.roots, inputs, outputs)
        self.digests.append(digest(seen))
        self.hosts.append(seen.host)

    def up_to(self, session: Session) -> EagerRuns | None:
        """The same of a session with fewer iterations; None if others were looked at than eager's of these."""
        return replace(self, session=session) if len(self.digests) == len(session.batches) else None

    def are_of(self, start: Snapshot, batches: Sequence[Inputs]) -> bool:
        """Whether an eager twin from this state, on these inputs, would be these very runs."""
        known = self.session.batches
        return (
            start is self.session.start
            and len(self.digests) == len(known) == len(batches)
            and all(one is other for one, other in zip(known, batches, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Digest:
    """What stands for each tensor's bits, with its shape and dtype.

    The copies that comparing element by element would need are several times a model's memory. Where
    digests differ, the tensors themselves are compared.
    """

    tensors: dict[str, tuple[object, ...]]
    values: dict[str, str]


def digest(seen: Footprint) -> Digest:
    """Digest everything but Python state behind the roots."""
    known: dict[tuple[object, ...], tuple[object, ...]] = {}  # one pass for tensors that are one
    with _disable_current_modes(), torch._C.DisableTorchFunction():  # no part of the step
        tensors = {path: _of_tensor(tensor, known) for path, tensor in seen.tensors.items()}
    return Digest(tensors, {path: repr(value) for path, value in seen.values.items()})


def _of_tensor(
    tensor: torch.Tensor, known: dict[tuple[object, ...], tuple[object, ...]]
) -> tuple[object, ...]:
    tensor = local_part(tensor)
    kind = (tuple(tensor.shape), tensor.dtype, str(tensor.device))
    plain = tensor.layout == torch.strided and not tensor.is_nested
    where = (address_of(tensor), tensor.stride(), *kind) if plain else (id(tensor),)
    if tensor.is_meta:
        return kind
    if where not in known:
        bits = dense_bits(tensor).contiguous().reshape(-1)
        known[where] = (*kind, contents_of(bits if lies_on_cpu(bits) else bits.cpu()))
    return known[where]
