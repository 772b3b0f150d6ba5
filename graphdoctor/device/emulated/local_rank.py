"""The environment that a launcher sets -> which of the machine's devices this process has."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocalRank:
    """One process of those on this machine, each of which has the device of its number."""

    index: int = 0
    count: int = 1

    @staticmethod
    def of_environment() -> LocalRank:
        """As torchrun says it; the only process where no launcher does."""
        try:
            index, count = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        except (KeyError, ValueError):
            return LocalRank()
        return LocalRank(index, count) if 0 <= index < count else LocalRank()
