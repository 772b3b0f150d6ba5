"""What partitioning decides, as values: regions with their operators, safe modules, an order."""

from __future__ import annotations

from dataclasses import dataclass

from graphdoctor.values.captures import Region


@dataclass(frozen=True)
class PlannedRegion:
    """A region and where it lies: for each iteration that runs it, the indices of its operators.

    The indices rise; gaps are operators that move out of the region's way.
    """

    region: Region
    spans: tuple[tuple[int, tuple[int, ...]], ...]

    def ops_in(self, iteration: int) -> tuple[int, ...]:
        """Its operators in the iteration of this index; none if the iteration does not run it."""
        return dict(self.spans).get(iteration, ())


@dataclass(frozen=True)
class Plan:
    """Which operators of the captured iterations can become graphs.

    `whole`: nothing stands in the way and one region holds all device operators of every
    iteration. `safe_modules` are paths of modules that could be captured by themselves.
    """

    regions: tuple[PlannedRegion, ...]
    safe_modules: tuple[str, ...]
    whole: bool
