"""How far eager runs drift from each other -> whether a replay's difference is more of the same.

A step with operators that add in a new order each time (atomic additions) drifts a little in every
tensor behind them, in some runs here and in others there. So a tensor that stood still in the few
eager runs there were may move in a replay: by about as much as others of its kind moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from graphdoctor.graphs.compare import Gap, is_noise

_FACTOR = 4.0  # beyond what was seen; the eager runs are few
_OPTIMIZER_STATE = re.compile(r"\.state\[.*\]\.(\w+)$")


class Noise:
    """What the drifts of eager from itself explain. Without drifts, nothing."""

    def __init__(self, drifts: Iterable[Gap]) -> None:
        self._drifts = tuple(drifts)
        self._relative: dict[str, float] = {}  # by kind: the largest drift of a magnitude
        for drift in self._drifts:
            if drift.is_small and drift.scale:
                kind, relative = _kind(drift.path), drift.max_abs / drift.scale
                self._relative[kind] = max(relative, self._relative.get(kind, 0.0))

    def explains(self, gap: Gap) -> bool:
        """Whether this tensor drifted by so much itself, or others of its kind by about as much.

        The latter holds only for what leaves half the digits alone: a difference of another origin,
        such as a frozen learning rate, must not hide behind tensors that drift far.
        """
        if is_noise(gap, self._drifts):
            return True
        limit = _FACTOR * self._relative.get(_kind(gap.path), 0.0) * gap.scale
        return gap.is_within_half_the_digits and gap.max_abs <= limit


def _kind(path: str) -> str:
    """Gradients, each sort of optimizer state, outputs, and all other state: they move alike."""
    if path.endswith(".grad"):
        return "gradient"
    sort = _OPTIMIZER_STATE.search(path)
    if sort is not None:
        return sort[1]
    return "output" if path.startswith("output") else "state"
