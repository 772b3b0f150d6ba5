"""Say where ranks are that do not end: which of them hang, and which wait for the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

import graphdoctor
from graphdoctor.target.frames import is_machinery, is_torch

Frame = tuple[str, int, str]  # file, line, function
_OURS = os.path.join(os.path.dirname(graphdoctor.__file__), "")
# Where graphdoctor itself waits for other ranks.
_MEETINGS = tuple(
    os.path.join(_OURS, "device", *path)
    for path in (("observe", "meeting.py"), ("processes", "launched.py"))
)


class Stand(msgspec.Struct, frozen=True):
    """Where the host of one rank is: the innermost line that is the user's, and those that led there."""

    waits: bool  # for others: it is in a collective, or in a meeting of graphdoctor's
    at: str = ""
    frames: str = ""

    @classmethod
    def of(cls, frames: Iterable[Frame]) -> Stand:
        """Of the main thread's frames, innermost first."""
        found = [*frames]
        ours = [n for n, (file, _, _) in enumerate(found) if file.startswith(_OURS)]
        inside = found[: ours[-1]] if ours else found  # behind these is what started graphdoctor
        own = [frame for frame in inside if not is_machinery(frame[0])]
        at = f"{own[0][0]}:{own[0][1]} ({own[0][2]})" if own else ""
        lines = (f'  File "{file}", line {line} in {function}' for file, line, function in own)
        waits = any(
            file.startswith(_MEETINGS) or (is_torch(file) and "distributed" in file)
            for file, _, _ in found
        )
        return cls(waits, at, "\n".join(lines))

    @property
    def words(self) -> str:
        """For a sentence that begins with the rank."""
        if self.waits:
            return f"waited for the others at {self.at}" if self.at else "waited for the others"
        return f"was at {self.at}" if self.at else "was outside the model's own code"


def did_not_end(stands: Mapping[int, Stand], limit_s: float) -> tuple[str, str]:
    """The sentence, those first that others wait for, and the lines where each rank was."""
    ranks = sorted(stands, key=lambda rank: (stands[rank].waits, rank))
    said = ", ".join(f"rank {rank} {stands[rank].words}" for rank in ranks)
    lines = "\n".join(
        f"rank {rank}:\n{stand.frames}" for rank, stand in sorted(stands.items()) if stand.frames
    )
    return f"the ranks did not end within {round(limit_s, 2):g} s: {said}", lines
