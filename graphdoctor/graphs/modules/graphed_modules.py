"""Modules with their graphs -> the same model with them in place, or without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from graphdoctor.graphs.modules.graphed_module import GraphedModule
from graphdoctor.graphs.modules.swap import put_forward, take_back


class GraphedModules:
    """The graphed modules by their paths, and the reasons why others were `left_out`.

    Nothing is in place until `install()`. A module whose forward somebody else has replaced since
    the capture stays as it is. `notes` says of graphed modules which of their calls run eagerly.
    """

    def __init__(
        self,
        modules: Mapping[str, GraphedModule],
        left_out: Mapping[str, str],
        notes: Mapping[str, str],
    ) -> None:
        self.modules = dict(modules)
        self.left_out = dict(left_out)
        self.notes = dict(notes)
        self._before: list[tuple[GraphedModule, object]] = []

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the graphed modules, in the order in which they were found."""
        return tuple(self.modules)

    @property
    def replays(self) -> int:
        """How many calls a graph has served."""
        return sum(module.replays for module in self.modules.values())

    @property
    def fallbacks(self) -> Counter[str]:
        """How many calls ran eagerly, by "path: reason"."""
        counted: Counter[str] = Counter()
        for path, module in self.modules.items():
            for reason, count in module.fallbacks.items():
                counted[f"{path}: {reason}" if path else reason] += count
        return counted

    def install(self) -> None:
        """Put the graphed forwards in place; does nothing where they are."""
        if self._before:
            return
        for graphed in self.modules.values():
            if graphed.module.forward == graphed.forward:
                before = put_forward(graphed.module, graphed)
                self._before.append((graphed, before))

    def uninstall(self) -> None:
        """Put back what was there before."""
        while self._before:
            graphed, before = self._before.pop()
            if graphed.module.__dict__.get("forward") is graphed:
                take_back(graphed.module, before)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The graphed forwards are in place inside the block."""
        self.install()
        try:
            yield
        finally:
            self.uninstall()

    def release(self) -> None:
        """Put everything back, and give the graphs and their memory back."""
        self.uninstall()
        for graphed in self.modules.values():
            graphed.release()
        self.modules.clear()
