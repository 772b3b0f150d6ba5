"""Which module is running, and whether an optimizer is: kept while a step runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from graphdoctor.target.state.walk import Walk


class Scopes:
    """The path of the innermost running module, and the optimizer flag."""

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._paths = module_paths(roots)
        self._stack: list[str] = []
        self._recomputed: list[str] = []  # the part of the stack that the backward pass entered
        self._optimizers = 0

    @property
    def module(self) -> str:
        return self._stack[-1] if self._stack else ""

    @property
    def recomputed_module(self) -> str | None:
        """The innermost module that the backward pass runs again, for activation checkpointing."""
        return self._recomputed[-1] if self._recomputed else None

    @property
    def in_optimizer(self) -> bool:
        return self._optimizers > 0

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow modules and optimizers while the block runs, also through exceptions."""
        call: Any = torch.nn.Module._call_impl
        stack, recomputed, path_of = self._stack, self._recomputed, self._path_of

        def calling(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = path_of(module)
            again = torch._C._current_autograd_node() is not None
            stack.append(path)
            if again:
                recomputed.append(path)
            try:
                return call(module, *args, **kwargs)
            finally:
                stack.pop()
                if again:
                    recomputed.pop()

        # Replaced on the class, and not hooked: a hook is skipped when a module raises. `__call__` is a slot: Python
        # would write a new one to each of hundreds of subclasses, which takes most of a millisecond.
        torch.nn.Module._call_impl = calling  # type: ignore[assignment, method-assign]
        hooks = (
            torch_optimizer.register_optimizer_step_pre_hook(self._enter_optimizer),
            torch_optimizer.register_optimizer_step_post_hook(self._leave_optimizer),
        )
        try:
            yield
        finally:
            torch.nn.Module._call_impl = call  # type: ignore[method-assign]
            for hook in hooks:
                hook.remove()
            stack.clear()
            recomputed.clear()
            self._optimizers = 0

    def _path_of(self, module: torch.nn.Module) -> str:
        path = self._paths.get(id(module))
        if path is not None:
            return path
        outer = self._stack[-1] if self._stack else ""
        name = type(module).__name__
        return f"{outer}.{name}" if outer else name

    def _enter_optimizer(
        self, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The closure of `step(closure)` is none of the optimizer's work: Lightning runs whole steps in it."""
        self._optimizers += 1
        optimizer, *given = args
        named = {name: self._outside(each) for name, each in kwargs.items()}
        return (optimizer, *map(self._outside, given)), named

    def _outside(self, argument: Any) -> Any:
        if not callable(argument):
            return argument

        def closure() -> Any:
            inside, self._optimizers = self._optimizers, 0
            try:
                return argument()
            finally:
                self._optimizers = inside

        return closure

    def _leave_optimizer(self, *_: Any) -> None:
        self._optimizers -= 1


def module_paths(roots: Mapping[str, object]) -> dict[int, str]:
    """The dotted path of every module that the roots reach.

    It begins with the name of what holds it ("generator.first"), unless only one model has
    parameters: that one needs no name, whatever loss functions stand beside it.
    """
    tops = outermost_modules(roots)
    trained = [module for module in tops.values() if any(True for _ in module.parameters())]
    alone = [*tops.values()] if len(tops) == 1 else trained
    nameless = alone[0] if len(alone) == 1 else None
    paths: dict[int, str] = {}
    for name, top in tops.items():
        prefix = "" if top is nameless else name
        for path, module in top.named_modules(prefix=prefix):
            paths.setdefault(id(module), path)
    return paths


def outermost_modules(roots: Mapping[str, object]) -> dict[str, torch.nn.Module]:
    """The modules that no other module contains, by the names of what holds them."""
    found: dict[str, torch.nn.Module] = {}
    inside: set[int] = set()
    with torch._C.DisableTorchFunction():
        for path, value, _ in Walk(roots):
            if isinstance(value, torch.nn.Module) and id(value) not in inside:
                found[str(path)] = value
                inside.update(id(module) for module in value.modules() if module is not value)
    return {path: module for path, module in found.items() if id(module) not in inside}
