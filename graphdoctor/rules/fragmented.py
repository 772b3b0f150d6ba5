"""The regions of a plan -> a finding where they are too small to pay."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.rules.rule import Rule
from graphdoctor.values.captures import Region
from graphdoctor.values.figures import count_text
from graphdoctor.values.finding import Finding


class Fragmented(Rule):
    """The parts that can be captured are many and small.

    What stands in the way of a graph is spread over the step, so that the parts in between hold few
    operators. Launching a graph costs about as much as launching a kernel, and each part needs its
    inputs in place: a graph of a few kernels saves hardly anything.

    It is a false alarm where one large part carries nearly all of the time.

    Remove the hazards that cut the step, those in the middle first: each one that goes joins two
    parts.
    """

    id = "GD302"
    name = "fragmented"
    effect = "replay-is-slow"
    evidence = "documentation (NVIDIA, CUDA Graph Best Practice for PyTorch: performance issues)"
    fix = "Remove the hazards between the parts, those in the middle of the step first."
    decided_by = "partition"

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            for _ in range(4):
                x = torch.relu(x)
                x = x / x.max().item()
            return x

        return step, (torch.rand(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            for _ in range(4):
                x = torch.relu(x)
                x = x / x.max()
            return x

        return step, (torch.rand(8, 16, device="cuda"),)


def fragmented(regions: Sequence[Region]) -> Finding | None:
    """The finding, if there are several regions and half of them are not worth capturing."""
    small = [region for region in regions if not region.worthwhile]
    if len(regions) < 2 or 2 * len(small) < len(regions):
        return None
    blockers = sorted({blocker for region in regions for blocker in region.blocked_by})
    cut = f", cut by {', '.join(blockers)}" if blockers else ""
    launches = sum(region.launches for region in small)
    return Fragmented.finding(
        f"The step falls into {count_text(len(regions), 'part')}{cut}; {len(small)} of them "
        f"({count_text(launches, 'launch')} together) are too small for a graph to pay.",
        small[0].first,
    )
