"""A recorded iteration and the modules behind it -> which of them to graph, and the operators of their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import torch

from graphdoctor.estimate import launches
from graphdoctor.graphs.modules import modules_by_path
from graphdoctor.partition.regions import FEWEST_LAUNCHES
from graphdoctor.strategies.strategy import Known
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Op


class ModuleChoice:
    """The outermost modules that can be graphed by themselves.

    A model that is the only one of its step has no name in a recording, so it is none of the safe
    modules even where all of it is safe. It is chosen where no finding lies inside its forward.
    """

    def __init__(self, known: Known, only: Iterable[str] | None = None) -> None:
        """`only`: the paths that were graphed, in the place of those that are to be."""
        self._known = known
        self._only = frozenset(only) if only is not None else None
        self.modules: Mapping[str, torch.nn.Module] = modules_by_path(known.roots)

    @cached_property
    def chosen(self) -> dict[str, torch.nn.Module]:
        """By path. Where no module launches enough to pay, all of them: the table shows the loss."""
        if self._only is not None:
            return {path: module for path, module in self.modules.items() if path in self._only}
        paths = [path for path in self._safe if path in self.modules]
        big = {path: self.modules[path] for path in paths if self.is_worth(path)}
        return big or {path: self.modules[path] for path in paths}

    @cached_property
    def varying(self) -> frozenset[str]:
        """The modules that run other shapes in other iterations, of which a graph would hold one."""
        ops = (op for op in self._known.iteration.ops if op.index in self._known.varying.ops)
        return frozenset(path for op in ops for path in self._owners(op))

    @cached_property
    def _safe(self) -> tuple[str, ...]:
        safe = self._known.safe_modules
        safe = ("", *self._beside_root) if self._root_is_safe else safe
        return tuple(path for path in safe if path not in self.varying)

    @property
    def _beside_root(self) -> list[str]:
        return [path for path in self._known.safe_modules if path not in self._in_root]

    def is_worth(self, path: str) -> bool:
        """Whether it launches enough; one that this iteration did not run may."""
        if self._pays_nowhere:
            return True
        count = self._launches[path]
        return count >= FEWEST_LAUNCHES or (count == 0 and path in self._known.safe_modules)

    @cached_property
    def _pays_nowhere(self) -> bool:
        return all(self._launches[path] < FEWEST_LAUNCHES for path in self._safe)

    @cached_property
    def _launches(self) -> Counter[str]:
        """Of each module's forward and backward, its children's included."""
        counted: Counter[str] = Counter()
        for op in self._known.iteration.ops:
            if op.phase in ("forward", "backward"):
                for path in self._owners(op):
                    counted[path] += launches(op)
        return counted

    def _owners(self, op: Op) -> Iterator[str]:
        path = op.module
        while path:
            yield path
            path = path.rpartition(".")[0]
        if self._is_in_root(op.module, op.location, op.stack):
            yield ""

    def regions(self) -> list[list[int]]:
        """The operators of each call of a chosen module: its forward, and its backward."""
        found: list[list[int]] = []
        open_for: tuple[str, str] | None = None
        for op in self._known.iteration.ops:
            if not op.is_cuda:
                continue
            owner = self._chosen_owner(op)
            if owner is not None:
                if owner != open_for:
                    found.append([])
                found[-1].append(op.index)
                open_for = owner
            elif launches(op):
                open_for = None
        return found

    def _chosen_owner(self, op: Op) -> tuple[str, str] | None:
        if op.phase not in ("forward", "backward"):
            return None
        path = next((path for path in self._owners(op) if path in self.chosen), None)
        return None if path is None else (path, op.phase)

    @cached_property
    def _in_root(self) -> frozenset[str]:
        """The paths of what the nameless model is made of, without its own."""
        root = self.modules.get("")
        if root is None:
            return frozenset()
        inside = {id(module) for module in root.modules()}
        return frozenset(path for path, m in self.modules.items() if path and id(m) in inside)

    @cached_property
    def _root_is_safe(self) -> bool:
        if "" not in self.modules:
            return False
        harmful = (f for f in self._known.findings if f.effect != "replay-is-slow")
        return not any(map(self._finding_is_in_root, harmful))

    def _finding_is_in_root(self, finding: Finding) -> bool:
        return self._is_in_root(finding.module, finding.location, finding.stack)

    def _is_in_root(
        self, module: str, location: Location | None, stack: tuple[Location, ...]
    ) -> bool:
        if "" not in self.modules:  # a step of several models: each has a name
            return False
        if any(module == path or module.startswith(f"{path}.") for path in self._in_root):
            return True
        return not module and any(map(self._is_line_of_root, (location, *stack)))

    def _is_line_of_root(self, location: Location | None) -> bool:
        if location is None or self._root_lines is None:
            return False
        file, lines = self._root_lines
        return location.file == file and location.line in lines

    @cached_property
    def _root_lines(self) -> tuple[str, range] | None:
        """The lines of the model's forward."""
        code = getattr(getattr(self.modules[""], "forward", None), "__code__", None)
        if code is None:
            return None
        last = max((line for *_, line in code.co_lines() if line is not None), default=0)
        return code.co_filename, range(code.co_firstlineno, last + 1)
