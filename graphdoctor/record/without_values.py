"""Puts a target whose weights have no values, or none to spare, on memory that is never touched.

Whether there are some to spare is what this machine's memory says, as often as an analysis holds the state.
The step runs on shapes only then; where it needs a value it goes on with one that is assumed, and that
is said.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.parameter import is_lazy

from graphdoctor.device.emulated import EmulatedDevice, EmulationLimit
from graphdoctor.device.emulated.shapes import untouched_like, untouched_memory
from graphdoctor.record.place import movable
from graphdoctor.target import Target, named_tensors
from graphdoctor.target.state.tree import map_inputs
from graphdoctor.target.target import Inputs
from graphdoctor.target.user_code import first_line, in_short
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.host_events import CutShort

# In training: the state itself, as it was found, as the session begins, and that of the eager twin. What
# does not change is copied once: measured for inference, docs/performance.md.
_COPIES = {"training": 4.0, "inference": 2.5}
_PART_FOR_RESULTS = 4
_MOST_FOR_RESULTS = 4 << 30  # other processes, or other analyses, need memory too
_CGROUP = Path("/sys/fs/cgroup")


def lacks_memory(target: Target, named: Mapping[str, torch.Tensor]) -> str:
    """Why the step cannot run with values here, as a clause; "" where it can, or the system does not say.

    `named` are the tensors of its state.
    """
    free = _free_bytes()
    there, more = _state_bytes(target, named)
    needed = _needed_bytes(target, there, more)
    if free is None or needed <= free:
        return ""
    return (
        f"the analysis would take {_gigabytes(needed)} in addition to the weights, gradients and optimizer"
        f" state of {_gigabytes(there + more)}, and {_gigabytes(free)} are free"
    )


def memory_for_results(target: Target) -> int:
    """How many bytes may keep what operators computed: a part of what the analysis leaves free."""
    needed = _needed_bytes(target, *_state_bytes(target, named_tensors(target.roots)))
    left = max(0, (_free_bytes() or 0) - needed)
    return min(left // _PART_FOR_RESULTS, _MOST_FOR_RESULTS)


def _needed_bytes(target: Target, there: int, more: int) -> int:
    """Beside what is there."""
    return round(_COPIES[target.mode or "training"] * (there + more)) - there


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"


def _state_bytes(target: Target, named: Mapping[str, torch.Tensor]) -> tuple[int, int]:
    """What is there, each memory once, and what the first training step adds."""
    storages = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for tensor in named.values()
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


NO_VALUES = "the step ran on shapes only"


@contextmanager
def without_values(target: Target, device: EmulatedDevice) -> Iterator[Target]:
    """Inside the block no operator computes, and tensors of the meta device stand on untouched memory.

    Afterwards these are on the meta device again. Raises `EmulationLimit` where one of them cannot be
    exchanged, because something else holds it.
    """
    device.leave_values_out()
    named = named_tensors(target.roots)
    for tensor in (*movable(target), *filter(device.table.is_cuda, named.values())):
        if tensor.is_floating_point():
            device.table.take_values(tensor)
    lent: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        _lend(named, lent, device)
        yield replace(
            target, step=_going_on(target.step, device), fresh_inputs=_inputs(target, device)
        )
    finally:
        gc.collect()  # graphs of autograd that a cycle keeps alive hold the tensors that they lead to
        for tensor, twin in lent:
            tensor.grad = None
            _exchange(tensor, twin, "a tensor")


def _lend(
    named: dict[str, torch.Tensor],
    lent: list[tuple[torch.Tensor, torch.Tensor]],
    device: EmulatedDevice,
) -> None:
    memories = _Memories(device)
    empty = {id(tensor): (path, tensor) for path, tensor in named.items() if tensor.is_meta}
    for path, tensor in empty.values():
        twin = memories.like(tensor)
        vars(twin).update(vars(tensor))
        _exchange(tensor, twin, path)
        lent.append((tensor, twin))
    for tensor, twin in lent:  # the gradients themselves were exchanged, too
        if twin.grad is not None:
            tensor.grad = twin.grad


def _exchange(tensor: torch.Tensor, twin: torch.Tensor, path: str) -> None:
    try:
        with torch._C.DisableTorchFunction():
            torch.utils.swap_tensors(tensor, twin)
    except RuntimeError as error:
        raise EmulationLimit(
            f"{path} is on the meta device and cannot be given memory here, because something else"
            f" holds it: {first_line(error)}"
        ) from error


class _Memories:
    """Untouched memory for tensors of the meta device, shared as theirs is."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device
        self._made: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            raise EmulationLimit(
                f"A tensor of layout {tensor.layout} on the meta device has no shape."
            )
        storage = tensor.untyped_storage()
        # The storage is kept beside its twin: its address stays its own.
        _, memory = self._made.setdefault(
            storage._cdata, (storage, untouched_memory(storage.nbytes()))
        )
        made = untouched_like(tensor, memory)
        self._device.table.take_values(made)
        self._device.unplaced.add(self._device.table.info(made).number)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)


def _inputs(target: Target, device: EmulatedDevice) -> Callable[[], Inputs]:
    def fresh_inputs() -> Inputs:
        memories = _Memories(device)

        def with_memory(leaf: object) -> object:
            is_empty = isinstance(leaf, torch.Tensor) and leaf.is_meta
            return memories.like(leaf) if is_empty else leaf  # type: ignore[arg-type]

        return map_inputs(with_memory, target.fresh_inputs())

    return fresh_inputs


def _going_on(step: Callable[..., object], device: EmulatedDevice) -> Callable[..., object]:
    """The step, which ends where it fails with something that was assumed on the way."""

    def followed(*args: object, **kwargs: object) -> object:
        before = device.assumptions
        try:
            return step(*args, **kwargs)
        except GraphDoctorError:
            raise
        except Exception as error:
            if device.assumptions == before:
                raise
            device.event(CutShort(type(error).__name__, error=in_short(error)))
            return None

    return followed
