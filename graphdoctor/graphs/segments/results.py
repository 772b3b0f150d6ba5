"""What a graph computed, in memory that replays overwrite -> what its caller gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphdoctor.graphs.segments.memory import Copier


@dataclass(frozen=True, slots=True)
class Results:
    """What a call does with each result, by its place among them.

    `back` are arguments, by their place among those; `copied` are the caller's to keep; `lent` stay
    where they are, and `Lent` learns who holds them. All others are nobody's but the caller's.
    `copier` has the copied ones where they are the same tensors in every call.
    """

    back: Mapping[int, int]
    copied: Sequence[int]
    lent: Sequence[int]
    copier: Copier | None

    def hand_out(self, results: list[Any], args: Sequence[Any]) -> None:
        for place, given in self.back.items():
            results[place] = args[given]
        for place in self.lent:
            results[place] = results[place].detach()  # its storage then counts who holds it
        copier = self.copier or Copier([results[place] for place in self.copied])
        copies = copier.taken()
        for place, copy in zip(self.copied, copies, strict=True):
            results[place] = copy


def strangers(results: Sequence[Any], own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors among the results that are not the graph's own, such as views that it made anew."""
    known = set(map(id, own))
    tensors = {id(result): result for result in results if isinstance(result, torch.Tensor)}
    return [tensor for key, tensor in tensors.items() if key not in known]
