"""Makes findings of collectives that not all ranks of a step call; the ranks see them as they run."""

from __future__ import annotations

from graphdoctor.rules.rule import Rule
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location


class CollectivesDiffer(Rule):
    """Ranks call different collectives, in a different order, or with different sizes.

    A collective ends when every rank of its group has called it. If one rank calls another collective,
    or fewer of them, the ranks wait for each other forever. If the sizes differ, NCCL can also write
    wrong values. A capture only records the collectives and notices nothing; the replay hangs.

    The operators between the collectives may differ from rank to rank: each rank captures its own step.

    False alarm: the ranks differ only in this analysis, for example because one rank reads a file that
    the other ranks do not have.

    Let each rank call the same collectives in the same order. Call them outside `if rank == 0:`, pad
    tensors to one size, and let a rank without data send zeros.
    """

    id = "GD216"
    name = "collectives-differ"
    effect = "replay-is-wrong"
    evidence = (
        "documentation: NVIDIA's NCCL user guide, 'Collective Operations': each rank calls them with the same count and"
        " datatype, or the behavior is undefined, including hangs, crashes, or data corruption"
    )
    fix = "Let every rank call the same collectives in the same order and with equal sizes."

    @staticmethod
    def bad() -> object:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("nccl")

        def step(x):
            y = x @ x.T
            if dist.get_rank() == 0:
                dist.all_reduce(y)  # <- GD216
            return y.relu()

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("nccl")

        def step(x):
            y = x @ x.T
            dist.all_reduce(y)
            return y.relu()

        return step, (torch.randn(8, 16, device="cuda"),)


def collectives_differ(what: str, location: Location | None) -> Finding:
    """`what` says which rank calls what, beginning with a rank."""
    return CollectivesDiffer.finding(f"{what[0].upper()}{what[1:]}.", location)
