"""A step -> the same step, in which the largest safe modules are graphs and all else is the user's Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch.nn.parallel import DistributedDataParallel

from graphdoctor.estimate import Calls, Regions
from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.graphs.modules import (
    Choices,
    GraphedModules,
    graph_modules,
    modules_by_path,
    wrapper_of,
)
from graphdoctor.operators.conditions import has_nested
from graphdoctor.record.session import Session
from graphdoctor.strategies.module_choice import ModuleChoice
from graphdoctor.strategies.strategy import Built, CannotBuild, Captured, Known, Strategy
from graphdoctor.target import Inputs

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
            return "no module of it can be captured by itself"
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
            raise CannotBuild(_nothing_left(made))
        return BuiltModules(session, made)

    def code(self, known: Known) -> str:
        return code_for(ModuleChoice(known).chosen, known)


def _calls(regions: Sequence[Sequence[int]], known: Known) -> Calls:
    count = len(regions)
    return Calls(module=count) if known.mode == "inference" else Calls(trained_module=count)


def _nothing_left(made: GraphedModules) -> str:
    """Why each module was left out; the first few, since they have often one cause."""
    reasons = [f"{path or 'the model'}: {reason}" for path, reason in made.left_out.items()]
    shown = "; ".join(reasons[:3])
    more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
    return f"no module could be graphed: {shown}{more}"


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
        first = _nameless(roots)
    return first + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest)


def _nameless(roots: Mapping[str, object]) -> str:
    """The name of the only model, whose modules' paths do without it."""
    models = [n for n, root in roots.items() if isinstance(root, torch.nn.Module)]
    trained = [n for n in models if any(True for _ in roots[n].parameters())]  # type: ignore[attr-defined]
    return (trained or models or ["model"])[0]
