"""A target -> whether its state fits into this machine's memory as often as an analysis holds it, and what is left."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.parameter import is_lazy

from graphdoctor.target import Target, named_tensors

# In training: the state itself, as it was found, as the session begins, and that of the eager twin. What
# does not change is copied once: measured for inference, docs/performance.md.
_COPIES = {"training": 4.0, "inference": 2.5}
_PART_FOR_RESULTS = 4
_MOST_FOR_RESULTS = 4 << 30  # others run beside this analysis, or several of them
_CGROUP = Path("/sys/fs/cgroup")


def lacks_memory(target: Target) -> str:
    """Why the step cannot run with values here, as a clause; "" where it can, or nobody knows."""
    free = _free_bytes()
    there, more = _state_bytes(target)
    needed = _needed_bytes(target, there, more)
    if free is None or needed <= free:
        return ""
    return (
        f"the analysis would take {_gigabytes(needed)} in addition to the weights, gradients and optimizer"
        f" state of {_gigabytes(there + more)}, and {_gigabytes(free)} are free"
    )


def memory_for_results(target: Target) -> int:
    """How many bytes may keep what operators computed: a part of what the analysis leaves free."""
    needed = _needed_bytes(target, *_state_bytes(target))
    left = max(0, (_free_bytes() or 0) - needed)
    return min(left // _PART_FOR_RESULTS, _MOST_FOR_RESULTS)


def _needed_bytes(target: Target, there: int, more: int) -> int:
    """Beside what is there."""
    return round(_COPIES[target.mode or "training"] * (there + more)) - there


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"


def _state_bytes(target: Target) -> tuple[int, int]:
    """What is there, each memory once, and what the first training step adds."""
    named = named_tensors(target.roots).values()
    storages = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for tensor in named
        if not is_lazy(tensor) and tensor.layout is torch.strided and not tensor.is_meta
    }
    added = sum(_added_by(root) for root in target.roots.values())
    return sum(storages.values()), added if target.mode == "training" else 0


def _added_by(root: object) -> int:
    """Gradients of a model's parameters, and an optimizer's state where it has none yet."""
    if isinstance(root, torch.nn.Module):
        return sum(_bytes_of(p) for p in root.parameters() if p.requires_grad and p.grad is None)
    if not isinstance(root, torch.optim.Optimizer):
        return 0
    without = [p for group in root.param_groups for p in group["params"] if p not in root.state]
    return _tensors_per_parameter(root) * sum(map(_bytes_of, without))


def _tensors_per_parameter(optimizer: torch.optim.Optimizer) -> int:
    if isinstance(optimizer, torch.optim.SGD):
        return int(any(group["momentum"] for group in optimizer.param_groups))
    return 2 if "betas" in optimizer.defaults else 1


def _bytes_of(tensor: torch.Tensor) -> int:
    return 0 if is_lazy(tensor) else tensor.numel() * tensor.element_size()


def _free_bytes() -> int | None:
    """Of the machine, or of the container where that allows less; None where the system does not say."""
    found = [free for free in (_of_machine(), _of_container()) if free is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_container() -> int | None:
    limit, used = (_lines(_CGROUP / name) for name in ("memory.max", "memory.current"))
    if not limit or not used or not limit[0].isdigit():
        return None
    return max(0, int(limit[0]) - int(used[0]))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
