"""Moves a target to the device, where its author placed nothing on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import FunctionType

import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.open import AnyDevice
from graphdoctor.target import Inputs, Target, named_tensors, user_code
from graphdoctor.target.state.clone import clone_inputs, memory_of
from graphdoctor.target.state.tree import input_leaves
from graphdoctor.target.state.walk import Walk

PLACED = (
    "nothing was on a GPU: parameters, buffers, optimizer state and inputs were put there for the"
    " analysis, as .cuda() puts them"
)

COMPILED = (
    "torch.compile() was skipped: the diagnosis is of the eager code. The compiler's own code, such as"
    ' its graphs with mode="reduce-overhead", was not checked'
)


def place(target: Target, device: AnyDevice) -> Target:
    """Put modules, optimizer state and inputs on the device, unless the author placed anything there.

    Who places something says where everything goes: what stays on the CPU then is part of
    the step, and a copy in it is a finding. The values of what is moved stay as they are.
    """
    target = _without_compiler(target, device)
    with user_code("making the inputs"):
        first = target.fresh_inputs()
    tensors = [*named_tensors(target.roots).values(), *_tensors(first)]
    if any(map(device.table.is_cuda, tensors)):
        draw = _first_then(first, target.fresh_inputs)
        return replace(target, fresh_inputs=_with_unplaced(target, draw, device))
    for tensor in movable(target):
        device.put(tensor)

    draw = _first_then(first, target.fresh_inputs)

    def fresh_inputs() -> Inputs:
        state = memory_of(named_tensors(target.roots).values())
        inputs = clone_inputs(draw(), kept=state)  # a cache that is passed in stays itself
        for tensor in _tensors(inputs):
            device.put(tensor)
        return inputs

    notes = (*target.notes, PLACED) if tensors else target.notes
    return replace(target, fresh_inputs=fresh_inputs, notes=notes)


def place_again(placed: Target, device: AnyDevice) -> None:
    """Put what `place` had moved back on the device, after the target's state was restored."""
    if PLACED in placed.notes:
        for tensor in movable(placed):
            device.put(tensor)


def _without_compiler(target: Target, device: AnyDevice) -> Target:
    """On the emulated device compiled code runs as eager: compilers would trace the emulation."""
    if not isinstance(device, EmulatedDevice):
        return target
    if not any(map(_is_compiled, (value for _, value, _ in Walk(target.roots)))):
        is_known = device.passed_compiler_by
        return replace(target, notes=(*target.notes, COMPILED)) if is_known else target

    def step(*args: object, **kwargs: object) -> object:
        with torch.compiler.set_stance("force_eager"):
            return target.step(*args, **kwargs)

    return replace(target, step=step, notes=(*target.notes, COMPILED))


def _is_compiled(value: object) -> bool:
    if isinstance(value, FunctionType):
        return "_torchdynamo_orig_callable" in vars(value)
    if not isinstance(value, torch.nn.Module):
        return False
    in_place = getattr(value, "_compiled_call_impl", None) is not None
    return in_place or type(value).__name__ == "OptimizedModule"


def _with_unplaced(
    target: Target, draw: Callable[[], Inputs], device: AnyDevice
) -> Callable[[], Inputs]:
    """What the meta device held has no place of its own: it goes where the rest is."""
    if not isinstance(device, EmulatedDevice) or device.has_values:
        return draw

    def put(tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if device.table.info(tensor).number in device.unplaced:
                device.put(tensor)

    def fresh_inputs() -> Inputs:
        inputs = draw()
        put(_tensors(inputs))
        return inputs

    put(named_tensors(target.roots).values())
    return fresh_inputs


def _first_then(first: Inputs, draw: Callable[[], Inputs]) -> Callable[[], Inputs]:
    """The inputs already drawn, which the target was described with, and new ones after them."""
    waiting = [first]
    return lambda: waiting.pop() if waiting else draw()


def _tensors(inputs: Inputs) -> Iterator[torch.Tensor]:
    """Without the lengths in a packed sequence, which its own `.cuda()` leaves on the CPU."""
    found = input_leaves(inputs)
    for path, leaf in found.items():
        stem, _, name = path.rpartition(".")
        is_length = name == "batch_sizes" and f"{stem}.sorted_indices" in found
        if isinstance(leaf, torch.Tensor) and not is_length:
            yield leaf


def movable(target: Target) -> Iterator[torch.Tensor]:
    """What `.cuda()` moves: parameters with their gradients and buffers; and optimizer state with them.

    Of all modules and optimizers that the roots lead to: a trainer has its model as an attribute.
    """
    seen: set[int] = set()
    for _, value, _ in Walk(target.roots):
        for tensor in _of(value):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor


def _of(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.nn.Module):
        is_whole = isinstance(value, torch.jit.ScriptModule)  # else the walk comes to those inside
        yield from _with_grads(value.parameters(recurse=is_whole))
        yield from value.buffers(recurse=is_whole)
    elif isinstance(value, torch.optim.Optimizer):
        for group in value.param_groups:
            yield from _with_grads(group["params"])
            yield from _state_of(value, group)


def _with_grads(parameters: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    for parameter in parameters:
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad


def _state_of(optimizer: torch.optim.Optimizer, group: dict[str, object]) -> Iterator[torch.Tensor]:
    """State lies where its parameter lies; a count of steps on the CPU, unless capturable or fused."""
    counts_on_device = bool(group.get("capturable") or group.get("fused"))
    for parameter in group["params"]:  # type: ignore[attr-defined]
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor) and (name != "step" or counts_on_device):
                yield value
