"""What the last look at a program cost -> when the next one may come."""

from __future__ import annotations

import random

SHARE = 0.005
"""Of the program's time, at most, that windows take."""
EXPECTED_COST_S = 0.1
_JITTER = 0.2  # so that windows do not keep step with the program


class DutyCycle:
    """Windows are so far apart that all of their cost stays below `share` of the time.

    A window may begin only when the one before it is paid for, so that at the beginning of each, what
    all took together is at most `share` of the time since `now_s`, whatever a window costs.
    """

    def __init__(self, now_s: float, share: float = SHARE) -> None:
        self._share = share
        self._random = random.Random(0)  # its own: the program's generators stay as they are
        self.due_s = now_s
        self.spent_s = 0.0
        self._rest(EXPECTED_COST_S)

    def pay(self, now_s: float, cost_s: float) -> None:
        """A window that cost so much has just ended."""
        self.spent_s += cost_s
        self.due_s = now_s
        self._rest(cost_s)

    def _rest(self, cost_s: float) -> None:
        self.due_s += cost_s / self._share * (1 + _JITTER * self._random.random())
