"""A model and the paths of its safe modules -> calls of the model in which these modules are replayed."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import torch

from graphdoctor.graphed import GraphedModules


class Parts:
    """The model with graphs for some of its modules, which are put in place for each call only.

    So the model is its author's whenever nobody calls it through here: copied, saved, called itself.
    """

    def __init__(self, model: torch.nn.Module, graphed: GraphedModules) -> None:
        self._model = model
        self._graphed = graphed
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        if not self._lock.acquire(blocking=False):
            return self._model(*args, **kwargs)
        try:
            with self._graphed.installed():
                return self._model(*args, **kwargs)
        finally:
            self._lock.release()

    @property
    def fallbacks(self) -> Counter[str]:
        return Counter(self._graphed.fallbacks)

    def release(self) -> None:
        self._graphed.release()
