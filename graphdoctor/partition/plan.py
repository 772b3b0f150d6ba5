"""What partitioning decides, as values: regions with their operators, safe modules, an order."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from graphdoctor.estimate import launches
from graphdoctor.values.captures import Region
from graphdoctor.values.recording import Iteration

if TYPE_CHECKING:
    from torch.fx import GraphModule


@dataclass(frozen=True)
class PlannedRegion:
    """A region and where it lies: for each iteration that runs it, the indices of its operators.

    The indices rise; gaps are operators that move out of the region's way.
    """

    region: Region
    spans: tuple[tuple[int, tuple[int, ...]], ...]
    iteration: Iteration = field(repr=False)  # the first that runs it

    def ops_in(self, iteration: int) -> tuple[int, ...]:
        """Its operators in the iteration of this index; none if the iteration does not run it."""
        return dict(self.spans).get(iteration, ())

    @cached_property
    def graph(self) -> GraphModule:
        """Its operators as a torch.fx graph, from the first iteration that runs it."""
        from graphdoctor.partition.fx import to_fx

        ops = [self.iteration.ops[index] for index in self.ops_in(self.iteration.index)]
        return to_fx(self.iteration, ops, launches=launches)


@dataclass(frozen=True)
class Plan:
    """Which operators of the captured iterations can become graphs.

    `whole`: nothing stands in the way and one region holds all device operators of every
    iteration. `safe_modules` are paths of modules that could be captured by themselves.
    """

    regions: tuple[PlannedRegion, ...]
    safe_modules: tuple[str, ...]
    whole: bool
