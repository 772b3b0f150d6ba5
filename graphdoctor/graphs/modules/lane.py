"""Graphs that must not run at the same time, and the streams they are called on -> one after the other."""

from __future__ import annotations

from typing import Any

import torch


class Lane:
    """The stream that the last graph ran on: another stream waits for it first.

    Graphs share memory: the next call's inputs must not be written before the last replay has ended.
    `pool` is the memory of those whose results are copied out at once.
    """

    def __init__(self) -> None:
        self.pool: Any = torch.cuda.graph_pool_handle()
        self._last: Any = None

    def enter(self) -> None:
        current: Any = torch.cuda.current_stream()
        if self._last is not None and self._last != current:
            current.wait_stream(self._last)
        self._last = current
