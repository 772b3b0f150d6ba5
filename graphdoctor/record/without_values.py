"""A target whose weights have no values, or none to spare -> the same on memory that is never touched.

The step runs on shapes only then; where it needs a value it goes on with one that is assumed, and that
is said.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from graphdoctor.device.emulated import EmulatedDevice, EmulationLimit
from graphdoctor.device.emulated.shapes import untouched_like, untouched_memory
from graphdoctor.record.place import movable
from graphdoctor.target.state.snapshot import named_tensors
from graphdoctor.target.state.tree import map_inputs
from graphdoctor.target.target import Inputs, Target
from graphdoctor.target.user_code import first_line, in_short
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.host_events import CutShort

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
