"""Which module is running, and whether an optimizer is: kept while a step runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer


class Scopes:
    """The path of the innermost running module, and the optimizer flag."""

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._paths = module_paths(roots)
        self._stack: list[str] = []
        self._optimizers = 0

    @property
    def module(self) -> str:
        return self._stack[-1] if self._stack else ""

    @property
    def in_optimizer(self) -> bool:
        return self._optimizers > 0

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow modules and optimizers while the block runs, also through exceptions."""
        call = torch.nn.Module.__call__
        stack, path_of = self._stack, self._path_of

        def calling(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            stack.append(path_of(module))
            try:
                return call(module, *args, **kwargs)
            finally:
                stack.pop()

        # Replaced on the class, and not hooked: a hook is skipped when a module raises.
        torch.nn.Module.__call__ = calling  # type: ignore[method-assign]
        hooks = (
            torch_optimizer.register_optimizer_step_pre_hook(self._enter_optimizer),
            torch_optimizer.register_optimizer_step_post_hook(self._leave_optimizer),
        )
        try:
            yield
        finally:
            torch.nn.Module.__call__ = call  # type: ignore[method-assign]
            for hook in hooks:
                hook.remove()
            stack.clear()
            self._optimizers = 0

    def _path_of(self, module: torch.nn.Module) -> str:
        path = self._paths.get(id(module))
        if path is not None:
            return path
        outer = self._stack[-1] if self._stack else ""
        name = type(module).__name__
        return f"{outer}.{name}" if outer else name

    def _enter_optimizer(self, *_: Any) -> None:
        self._optimizers += 1

    def _leave_optimizer(self, *_: Any) -> None:
        self._optimizers -= 1


def module_paths(roots: Mapping[str, object]) -> dict[int, str]:
    """The dotted path of every module, after its root's name where there are several roots."""
    modules = {name: root for name, root in roots.items() if isinstance(root, torch.nn.Module)}
    paths: dict[int, str] = {}
    for name, root in modules.items():
        prefix = "" if len(modules) == 1 else name
        for path, module in root.named_modules(prefix=prefix):
            paths.setdefault(id(module), path)
    return paths
