"""Stand-ins for the eager calls of a training step, which end the running graph first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import update_wrapper
from typing import Any

import torch

from graphdoctor.device.observe.patches import Patches
from graphdoctor.graphs.split.breakable import BreakableCapture, is_in_backward
from graphdoctor.graphs.split.glue import ERROR_IF_NONFINITE, METHODS, Call
from graphdoctor.graphs.split.optimizer_step import has_number_as_rate, why_not_captured
from graphdoctor.target.frames import locate


class _StandIn:
    """Looks like the method that it stands for, to code that inspects it."""

    def __init__(self, original: Callable[..., object], instead: Callable[..., object]) -> None:
        update_wrapper(self, original)
        self._instead = instead

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._instead(*args, **kwargs)


class Glue:
    """Puts stand-ins into a step's optimizers, schedules, scalers and torch's own functions."""

    def __init__(
        self, capture: BreakableCapture, objects: Mapping[str, object], *, rates_change: bool
    ) -> None:
        self._capture = capture
        self._objects = objects
        self._rates_change = rates_change

    def stand_in(self, patches: Patches) -> None:
        """Replace the calls until the patches are taken back."""
        for path, value in self._objects.items():
            if isinstance(value, torch.optim.Optimizer):
                patches.set(value, "step", self._optimizer_step(path, value))
            for kind, methods in METHODS:
                for method in methods if isinstance(value, kind) else ():
                    self._method(patches, path, value, method)
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            patches.replace(module, "clip_grad_norm_", self._clipping)
        for method in ("item", "tolist"):
            patches.replace(torch.Tensor, method, self._reading(method))
        patches.reach_imported_names()

    def _method(self, patches: Patches, path: str, owner: object, method: str) -> None:
        original = getattr(owner, method)
        name = f"{path}.{method}()"
        instead = _StandIn(
            original, lambda *args, **kwargs: self._make(name, original, args, kwargs)
        )
        patches.set(owner, method, instead)

    def _make(
        self,
        name: str,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> object:
        if self._capture.is_inside_call:
            return function(*args, **kwargs)
        return self._capture.make(_call(name, function, args, kwargs))

    def _optimizer_step(self, path: str, optimizer: torch.optim.Optimizer) -> _StandIn:
        original: Any = optimizer.step
        name = f"{path}.step()"

        def step(*args: object, **kwargs: object) -> object:
            capture = self._capture
            is_plain = not args and not kwargs
            if not is_plain and (args or kwargs.get("closure") is not None):
                capture.watch.refuse(
                    f"{name} is given a closure, which runs the forward and backward pass itself"
                )
            may_capture = is_plain and self._is_capturable(optimizer)
            if capture.is_inside_call:
                # Fused optimizers get new tensors from the scaler in each step.
                if may_capture and not getattr(optimizer, "_step_supports_amp_scaling", False):
                    return capture.step_in_call(optimizer, original)
                return original(*args, **kwargs)
            call = _call(name, original, args, kwargs)
            if may_capture:
                return capture.step_alone(call, optimizer)
            return capture.make(call)

        return _StandIn(original, step)

    def _is_capturable(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._rates_change and has_number_as_rate(optimizer):
            return False
        return not why_not_captured(optimizer)

    def _clipping(self, original: Callable[..., object]) -> Callable[..., object]:
        """It reads the norm only where it is to raise an error; else it belongs in a graph."""

        def clip_grad_norm_(*args: Any, **kwargs: Any) -> object:
            reads = kwargs.get("error_if_nonfinite", False)
            if len(args) > ERROR_IF_NONFINITE:
                reads = args[ERROR_IF_NONFINITE]
            if not reads:
                return original(*args, **kwargs)
            return self._make("clip_grad_norm_()", original, args, kwargs)

        return clip_grad_norm_

    def _reading(self, method: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
        def make(original: Callable[..., object]) -> Callable[..., object]:
            def read(tensor: torch.Tensor) -> object:
                if not tensor.is_cuda or self._capture.is_inside_call or is_in_backward():
                    return original(tensor)
                return self._make(f"{method}()", original, (tensor.detach(),), {})

            return read

        return make


def _call(
    name: str,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> Call:
    """A generator, such as model.parameters(), can be gone through once: it becomes a list."""
    lasting = {key: _lasting(value) for key, value in kwargs.items()}
    return Call(name, function, tuple(map(_lasting, args)), lasting, locate())


def _lasting(value: object) -> object:
    return list(value) if issubclass(type(value), Iterator) else value  # type: ignore[call-overload]
