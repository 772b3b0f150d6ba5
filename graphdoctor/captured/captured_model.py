"""One captured model: the model itself, its plan, and what answers its calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from graphdoctor.captured.parts import Parts
from graphdoctor.captured.plan import CapturePlan
from graphdoctor.captured.replays import Replays
from graphdoctor.captured.sentences import explain


@dataclass(slots=True)
class DropIn:
    """What is behind a captured module. `parts` are the graphs of modules."""

    model: torch.nn.Module
    plan: CapturePlan
    replays: Replays
    parts: Parts | None = None

    def fallbacks(self) -> Counter[str]:
        """Calls that ran eagerly, of the whole and of parts, by the reason."""
        counted = Counter(self.replays.fallbacks)
        if self.parts is not None:
            counted.update(self.parts.fallbacks)
        return counted

    def explain(self) -> str:
        return explain(
            type(self.model).__name__,
            self.plan,
            replayed=self.replays.replayed,
            part_replays=self.parts.replays if self.parts is not None else 0,
            fallbacks=self.fallbacks(),
        )

    def release(self) -> None:
        """Give all graphs' memory back."""
        self.replays.release()
        if self.parts is not None:
            self.parts.release()
        self.parts = None
        self.plan = CapturePlan(
            "eager", launches=self.plan.launches, obstacles=("it was released",)
        )
