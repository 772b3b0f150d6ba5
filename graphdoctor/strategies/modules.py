"""Runs a step in which the largest safe modules are graphs and all else is the user's Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property

import torch
from torch.nn.parallel import DistributedDataParallel

from graphdoctor.estimate import Calls, Regions, launches
from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.graphs.modules import (
    Choices,
    GraphedModules,
    graph_modules,
    modules_by_path,
    wrapper_of,
)
from graphdoctor.operators.conditions import has_nested
from graphdoctor.partition.regions import FEWEST_LAUNCHES
from graphdoctor.record.session import Session
from graphdoctor.strategies.strategy import Built, CannotBuild, Captured, Known, Strategy
from graphdoctor.target import Inputs
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Op

_TRAINING = """\
# Before the first step, in training mode. examples: a tuple of tensors on
# the GPU, of the shapes and the requires_grad of that module's real inputs,
# which are positional arguments only. Set .grad to None before each
# backward pass (optimizer.zero_grad does): accumulated gradients are wrong,
# pytorch/pytorch#181723.
"""
_INFERENCE = """\
# In evaluation mode. examples: that module's inputs, with real shapes, on
# the GPU.
import graphdoctor

"""

_OTHER_SHAPES = (
    "its safe modules work on other shapes in other iterations, and a graph of one holds one shape"
)


class BuiltModules(Built):
    """The user's step, run with graphed modules in place; between calls the modules are as they were."""

    other_path = "graphs of modules add up the gradients of their inputs in an order of their own"

    def __init__(self, session: Session, made: GraphedModules) -> None:
        self.made = made
        self._session = session

    def call(self, inputs: Inputs) -> object:
        with self.made.installed():
            return self._session.call(inputs)

    def assuming_capture(self) -> AbstractContextManager[None]:
        """Only inside the modules does anything believe that it is captured."""
        return self.made.apart(self._session.device.assuming_capture)

    def left_behind(self, inputs: Inputs, outputs: object) -> Footprint:
        return footprint(self._session.target.roots, inputs, outputs)

    def holds(self, known: Known) -> Captured | None:
        """The calls of the modules that could be graphed: a part of those chosen, or their children."""
        regions = ModuleChoice(known, only=self.made.modules).regions()
        return Captured(tuple(map(tuple, regions)), _calls(regions, known))

    def release(self) -> None:
        self.made.release()


class Modules(Strategy):
    """`torch.cuda.make_graphed_callables` on the outermost safe modules; their hooks stay in Python."""

    name = "modules"
    title = "the largest safe modules as graphs, all else eager"

    def reason_against(self, known: Known) -> str:
        """A wrapper that goes with no graphs inside, or nothing that is safe by itself."""
        modules = modules_by_path(known.roots)
        if not modules:
            return "the step calls no module"
        # What lies inside it may be graphed: it reduces the gradients that the graphs give back.
        others = (one for one in modules.values() if not isinstance(one, DistributedDataParallel))
        if wrapper := wrapper_of(others):
            return wrapper
        if any(map(has_nested, known.iteration.ops)):
            return (
                "the step works on nested tensors, whose sizes no graph of a module can be held to"
            )
        choice = ModuleChoice(known)
        if not choice.chosen:
            if choice.varying.intersection(known.safe_modules):
                return _OTHER_SHAPES
            return "none of its modules can be captured"
        return ""

    def regions(self, known: Known) -> Regions | None:
        """Forward and backward of each call of a chosen module, by the recorded iteration."""
        return ModuleChoice(known).regions()

    def calls(self, known: Known) -> Calls:
        return _calls(ModuleChoice(known).regions(), known)

    def build(self, session: Session, known: Known) -> BuiltModules:
        """Watch what the modules are called with in each of the session's iterations; capture that."""
        choice = ModuleChoice(known)

        def run() -> None:
            for index in range(len(session.batches)):
                session.call(session.inputs(index))

        with session.start.around():
            made = graph_modules(
                choice.chosen,
                run,
                restore=session.start.restore,
                choices=Choices(is_worth=choice.is_worth),
            )
        if not made.modules:
            made.release()
            reasons = [f"{path or 'the model'}: {reason}" for path, reason in made.left_out.items()]
            shown = "; ".join(reasons[:3])
            more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
            raise CannotBuild(f"no module could be graphed: {shown}{more}")
        return BuiltModules(session, made)

    def code(self, known: Known) -> str:
        return code_for(ModuleChoice(known).chosen, known)


def _calls(regions: Sequence[Sequence[int]], known: Known) -> Calls:
    count = len(regions)
    return Calls(module=count) if known.mode == "inference" else Calls(trained_module=count)


def code_for(chosen: Iterable[str], known: Known) -> str:
    """One line for each module."""
    modules = modules_by_path(known.roots)
    wrapped = {p for p, one in modules.items() if isinstance(one, DistributedDataParallel)}
    inside = {path: f"{_expression(path, known.roots)}.module" for path in wrapped}
    places = [inside.get(path) or _expression(path, known.roots) for path in chosen]
    if known.mode == "training":
        made = "{0} = torch.cuda.make_graphed_callables({0}, examples)"
        return _TRAINING + "\n".join(made.format(place) for place in places) + "\n"
    made = "{0} = graphdoctor.capture({0}, *examples)"
    return _INFERENCE + "\n".join(made.format(place) for place in places) + "\n"


def _expression(path: str, roots: Mapping[str, object]) -> str:
    """ "layers.0.mlp" -> "model.layers[0].mlp", after the name of the root that holds it."""
    first, *rest = path.split(".") if path else [""]
    if first not in roots:
        rest = [first, *rest] if first else rest
        # The name of the only model, whose modules' paths do without it.
        models = [n for n, root in roots.items() if isinstance(root, torch.nn.Module)]
        trained = [n for n in models if any(True for _ in roots[n].parameters())]  # type: ignore[attr-defined]
        first = (trained or models or ["model"])[0]
    return first + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest)


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
        if self._root_is_safe:
            safe = ("", *(path for path in safe if path not in self._in_root))
        return tuple(path for path in safe if path not in self.varying)

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
            in_module = op.phase in ("forward", "backward")
            owners = self._owners(op) if in_module else ()
            path = next((path for path in owners if path in self.chosen), None)
            if path is not None:
                if open_for != (path, op.phase):
                    found.append([])
                found[-1].append(op.index)
                open_for = path, op.phase
            elif launches(op):
                open_for = None
        return found

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
        return not any(self._is_in_root(f.module, f.location, f.stack) for f in harmful)

    def _is_in_root(
        self, module: str, location: Location | None, stack: tuple[Location, ...]
    ) -> bool:
        if "" not in self.modules:  # a step of several models: each has a name
            return False
        if any(module == path or module.startswith(f"{path}.") for path in self._in_root):
            return True
        file, lines = self._root_lines
        places = (at for at in (location, *stack) if at is not None)
        return not module and any(at.file == file and at.line in lines for at in places)

    @cached_property
    def _root_lines(self) -> tuple[str, range]:
        """The lines of the model's forward; none if it is no function of Python's."""
        code = getattr(getattr(self.modules[""], "forward", None), "__code__", None)
        if code is None:
            return "", range(0)
        last = max((line for *_, line in code.co_lines() if line is not None), default=0)
        return code.co_filename, range(code.co_firstlineno, last + 1)
