"""Graphs of some of a model's modules -> calls of the model in which these modules are replayed."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import torch

from graphdoctor.captured.context import Context
from graphdoctor.captured.state_watch import StateWatch
from graphdoctor.graphs.modules import GraphedModules


class Parts:
    """The model with graphs for some of its modules, which are put in place for each call only.

    So the model is its author's whenever nobody calls it through here: copied, saved, called itself.
    The modules watch their inputs, weights and flags themselves; what lies deeper, such as
    configuration objects and globals, is watched here.
    """

    def __init__(self, model: torch.nn.Module, graphed: GraphedModules, context: Context) -> None:
        self.fallen_back: Counter[str] = Counter()
        self._model = model
        self._graphed = graphed
        self._context = context
        self._watch = StateWatch({p or "model": m.module for p, m in graphed.modules.items()})
        self._lock = threading.Lock()
        # Calls that verified the graphs are none of the user's.
        self._earlier = graphed.replays, graphed.fallbacks

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        if why := self._why_not():
            return self._fall_back(why, args, kwargs)
        if not self._lock.acquire(blocking=False):
            return self._fall_back("another call was under way", args, kwargs)
        try:
            with self._graphed.installed():
                return self._model(*args, **kwargs)
        finally:
            self._lock.release()

    def _why_not(self) -> str:
        if not self._context.is_same():
            return self._context.difference()
        return "" if self._watch.is_same() else self._watch.difference()

    def _fall_back(self, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        self.fallen_back[why] += 1
        return self._model(*args, **kwargs)

    @property
    def paths(self) -> tuple[str, ...]:
        """The graphed modules; "" is the model itself."""
        return self._graphed.paths

    @property
    def left_out(self) -> dict[str, str]:
        """Why modules that were tried are not graphed, by path."""
        return self._graphed.left_out

    @property
    def replays(self) -> int:
        """How many calls of modules a graph has served."""
        return self._graphed.replays - self._earlier[0]

    @property
    def fallbacks(self) -> Counter[str]:
        """How many calls ran eagerly, by the reason."""
        return self.fallen_back + (self._graphed.fallbacks - self._earlier[1])

    def release(self) -> None:
        """Give the graphs' memory back; they cannot be used any more."""
        self._graphed.release()
