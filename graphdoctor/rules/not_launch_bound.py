"""Reports where a graph would hardly make the step faster."""

from __future__ import annotations

from graphdoctor.rules.rule import Rule
from graphdoctor.values.figures import Range
from graphdoctor.values.finding import Finding
from graphdoctor.values.speed import Estimate

# Removing all launches of a step that waits for them this little brings at most 1 / (1 - 0.15) = 1.18,
# and less in practice: two steps with shares of 0.04 and 0.13 gained 1.02 on an H200
# (benchmarks/data/samples_h200_torch2.11.jsonl).
LITTLE_WAITING = 0.15


class NotLaunchBound(Rule):
    """Kernels take longer than their launches.

    A CUDA graph removes the time that the CPU takes to launch kernels. In this step the kernels run so
    long that the CPU is ahead of the GPU anyway. A replay would take about as long as the eager step.

    False alarm: the CPU is slower, or busier, than the estimate assumes.

    Leave the step as it is. Fusion (`torch.compile`), lower precision or better layouts make large
    kernels faster. With a smaller batch or a faster GPU, the step can become launch-bound.
    """

    id = "GD301"
    name = "not-launch-bound"
    effect = "replay-is-slow"
    evidence = "documentation (NVIDIA, CUDA Graph Best Practice for PyTorch: quantitative benefits)"
    fix = "Leave this step as it is, and make the kernels faster: fusion, lower precision, layouts."

    @staticmethod
    def bad() -> object:
        import torch

        weight = torch.randn(4096, 4096, device="cuda")

        def step(x):
            return x @ weight

        return step, (torch.randn(4096, 4096, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        weight = torch.randn(4096, 4096, device="cuda")

        def step(x):
            return x @ weight

        return step, (torch.randn(4096, 4096, device="cuda"),)


def not_launch_bound(estimate: Estimate) -> Finding | None:
    """The finding, where the device hardly ever waits for the host, whatever can be captured."""
    if estimate.launch_bound_share.mid > LITTLE_WAITING:
        return None
    return NotLaunchBound.finding(
        f"The GPU is busy for {_us(estimate.device_busy_us)} of the "
        f"{_us(estimate.eager_us)} that a step takes, and waits for launches for "
        f"{estimate.launch_bound_share.mid:.0%} of it: a graph gains almost nothing "
        f"({estimate.basis} for {estimate.gpu}).",
        None,
    )


def _us(time: Range) -> str:
    return f"{time.mid:,.0f} us"
