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
        """As torchrun says it; without LOCAL_WORLD_SIZE all ranks are on this machine. One process if none says it."""
        index = _number("LOCAL_RANK", _number("RANK", -1))
        count = _number("LOCAL_WORLD_SIZE", _number("WORLD_SIZE", 0))
        return LocalRank(index, count) if 0 <= index < count else LocalRank()


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default
