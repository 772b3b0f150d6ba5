"""How a captured model is run, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphdoctor.values.report import Mode


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """`how` is "whole": one graph; "modules": the `modules` of these paths are graphs; or "eager".

    `launches` counts what one forward pass puts on the GPU, and `captured_launches` how much of it
    is in graphs. `obstacles` are the reasons, in sentences, why it is not all of it. `mode` says which
    calls these are: those without gradients, or those whose backward pass is a graph as well.
    """

    how: Literal["whole", "modules", "eager"]
    modules: tuple[str, ...] = ()
    launches: int = 0
    captured_launches: int = 0
    obstacles: tuple[str, ...] = ()
    mode: Mode = "inference"

    @property
    def coverage(self) -> float:
        """The share of the launches that are in graphs, 0.0 to 1.0."""
        return self.captured_launches / self.launches if self.launches else 0.0
