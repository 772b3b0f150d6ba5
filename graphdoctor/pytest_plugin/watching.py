"""A block of a test -> the modules that it called, and what it did that no module's forward shows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from graphdoctor.target.frames import is_machinery
from graphdoctor.values.escape import visible
from graphdoctor.values.figures import joined
from graphdoctor.values.locations import Location, file_line

_READS = frozenset({"item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__"})


@dataclass(frozen=True, slots=True)
class Call:
    """`args` and `kwargs` are copies: the module may write into its inputs."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class Seen:
    """Modules with their first calls; and, outside of modules, what trained and what was read."""

    calls: list[Call] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    depth: int = 0  # of calls of modules that are under way

    def note(self, kept: list[str], text: str) -> None:
        if self.depth == 0 and text not in kept:
            kept.append(text)


@contextmanager
def watching(module: torch.nn.Module | None) -> Iterator[Seen]:
    """What was seen so far. torch's own global hooks are not told keywords, so calls are intercepted."""
    seen = Seen()
    original = torch.nn.Module.__call__
    backward = torch.autograd.backward

    def call(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        is_meant = self is module if module is not None else seen.depth == 0
        if is_meant and all(self is not known.module for known in seen.calls):
            seen.calls.append(Call(self, _copied(args), _copied(kwargs)))
        seen.depth += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            seen.depth -= 1

    def went_back(*args: Any, **kwargs: Any) -> Any:
        seen.note(seen.trained, f"the backward pass{_where()}")
        return backward(*args, **kwargs)

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]
    torch.autograd.backward = went_back
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, args, kwargs: seen.note(seen.trained, _stepped(optimizer))
    )
    try:
        with _Reads(seen):
            yield seen
    finally:
        hook.remove()
        torch.autograd.backward = backward
        torch.nn.Module.__call__ = original  # type: ignore[method-assign]


class _Reads(TorchFunctionMode):
    """Notes each call that gives the host a tensor's values."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS and not is_machinery(sys._getframe(1).f_code.co_filename):
            self._seen.note(self._seen.reads, f".{name}(){_where()}")
        return func(*args, **(kwargs or {}))


def not_seen(seen: Seen) -> str:
    """What of a training step was checked and what was not, and how to check all of it."""
    checked = ", ".join(dict.fromkeys(type(call.module).__name__ for call in seen.calls))
    return visible(
        f"the block trains, and watch() checks only the forward of {checked}: it did not check"
        f" {joined([*seen.trained, *seen.reads])}; call graphdoctor.check(step, *inputs) with the"
        " whole step as a function, or watch(module) to mean the forward alone"
    )


def _stepped(optimizer: torch.optim.Optimizer) -> str:
    """A step is refused by capture where the optimizer has the flag and it is not set."""
    is_refused = any(group.get("capturable", True) is False for group in optimizer.param_groups)
    note = " (constructed without capturable=True)" if is_refused else ""
    return f"{type(optimizer).__name__}.step(){note}{_where()}"


def _where() -> str:
    """ " in test_net.py:12", of the nearest frame that is no library's."""
    frame = sys._getframe(1)
    while frame is not None:
        if not is_machinery(frame.f_code.co_filename):
            return f" in {file_line(Location(frame.f_code.co_filename, frame.f_lineno))}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _copied(inputs: Any) -> Any:
    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return tree_map(copy, inputs)
