"""The modes of torch in which a step runs, apart from those of the statement that the program is in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def surrounded(autocast: bool | None) -> Iterator[None]:
    """The modes around a step, where those of now are of a statement in it.

    Copies that autocast keeps of weights are none of the step's: a capture would read them for ever.
    """
    is_on = {kind: torch.is_autocast_enabled(kind) for kind in ("cuda", "cpu")}
    keeps, depth = torch.is_autocast_cache_enabled(), _autocast_depth()
    torch.clear_autocast_cache()
    if autocast is False:
        for kind in is_on:
            torch.set_autocast_enabled(kind, False)
        for _ in range(depth):
            torch.autocast_decrement_nesting()
    elif any(is_on.values()):
        torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        if autocast is False:
            for _ in range(depth):
                torch.autocast_increment_nesting()
        for kind, enabled in is_on.items():
            torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_cache_enabled(keeps)
        torch.clear_autocast_cache()


def _autocast_depth() -> int:
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return int(depth)
