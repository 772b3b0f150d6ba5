"""Reports the regions of a plan that are too small to pay."""

from __future__ import annotations

from collections.abc import Sequence

from graphdoctor.rules.rule import Rule
from graphdoctor.values.captures import Region
from graphdoctor.values.figures import count_text, joined
from graphdoctor.values.finding import Finding


class Fragmented(Rule):
    """The regions that can be captured are many and small.

    Other findings split the step into regions with few operators each. Launching a graph costs about as
    much as launching a kernel, and each region needs its inputs copied. A graph of a few kernels
    therefore saves almost nothing.

    False alarm: one large region contains nearly all of the time.

    Fix the findings that split the step, those in the middle first. Each fix joins two regions.
    """

    id = "GD302"
    name = "fragmented"
    effect = "replay-is-slow"
    evidence = "documentation (NVIDIA, CUDA Graph Best Practice for PyTorch: performance issues)"
    fix = "Fix the findings between the regions, those in the middle of the step first."

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
    subject = (
        f"{joined(blockers)} {'splits' if len(blockers) == 1 else 'split'}"
        if blockers
        else "Findings split"
    )
    launches = count_text(sum(region.launches for region in small), "launch")
    have = f"has {launches}" if len(small) == 1 else f"have {launches} in total"
    return Fragmented.finding(
        f"{subject} the step into {count_text(len(regions), 'region')}. {len(small)} of them {have}, too "
        "few for a graph to pay off.",
        small[0].first,
    )
