"""The eager iterations that are recorded -> digests of what each left behind: an eager twin that has run already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphdoctor.graphs.footprint import footprint
from graphdoctor.proof.digest import Digest, digest
from graphdoctor.record import Session
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

    def are_of(self, start: Snapshot, batches: Sequence[Inputs]) -> bool:
        """Whether an eager twin from this state, on these inputs, would be these very runs."""
        known = self.session.batches
        return (
            start is self.session.start
            and len(self.digests) == len(known) == len(batches)
            and all(one is other for one, other in zip(known, batches, strict=True))
        )
