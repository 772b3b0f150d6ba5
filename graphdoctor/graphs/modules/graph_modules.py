"""Modules by path, and a run of the step that calls them -> those that can be graphed, graphed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from graphdoctor.graphs.cause import in_words, location_of, true_cause
from graphdoctor.graphs.modules.body import Body
from graphdoctor.graphs.modules.captured_call import Graph, ToCapture, static_tensors
from graphdoctor.graphs.modules.choices import Choices
from graphdoctor.graphs.modules.fitness import unfit
from graphdoctor.graphs.modules.forward_graph import ForwardGraph
from graphdoctor.graphs.modules.graphed_module import GraphedModule
from graphdoctor.graphs.modules.graphed_modules import GraphedModules
from graphdoctor.graphs.modules.guard import Guard
from graphdoctor.graphs.modules.lane import Lane
from graphdoctor.graphs.modules.observe import Observations, Observed, Signature, observe
from graphdoctor.graphs.modules.training_graph import TrainingGraph
from graphdoctor.target.state.snapshot import snapshot
from graphdoctor.values.errors import GraphDoctorError

_NOT_CALLED = "it was not called"


class _LeftOut(Exception):
    """A module that stays as it is, with the reason."""


def graph_modules(
    modules: Mapping[str, torch.nn.Module],
    run: Callable[[], object],
    *,
    restore: Callable[[], None],
    choices: Choices | None = None,
) -> GraphedModules:
    """Graph each module, or where it cannot be graphed as a whole, its children.

    `run()` calls the modules as the program will, once or several times; it runs once for each depth
    at which modules are tried. `restore()` is called after each, to put state back. Neither may put
    back a module's attributes while `run` is under way: that would take away what watches them.
    Raises what `run` raises.
    """
    choices, lane = choices or Choices(), Lane()
    made: dict[str, GraphedModule] = {}
    left_out: dict[str, str] = {}
    notes: dict[str, str] = {}
    waiting = {path: module for path, module in modules.items() if choices.is_worth(path)}
    met: set[int] = set()
    while waiting := _not_met(waiting, met):
        reasons = {path: unfit(module) for path, module in waiting.items()}
        fit = {path: module for path, module in waiting.items() if not reasons[path]}
        try:
            seen = observe(fit, run) if fit else {}
        finally:
            restore()
        for path, module in fit.items():
            try:
                made[path], notes[path] = _graphed(module, seen[path], choices, lane)
            except _LeftOut as left:
                reasons[path] = str(left)
        left_out.update({path: reason for path, reason in reasons.items() if reason})
        waiting = _children(waiting, reasons, choices)
    return GraphedModules(made, left_out, {path: note for path, note in notes.items() if note})


def _not_met(modules: Mapping[str, torch.nn.Module], met: set[int]) -> dict[str, torch.nn.Module]:
    """Each module once, though it may stand in several places."""
    found: dict[str, torch.nn.Module] = {}
    for path, module in modules.items():
        if id(module) not in met:
            met.add(id(module))
            found[path] = module
    return found


def _children(
    modules: Mapping[str, torch.nn.Module], reasons: Mapping[str, str], choices: Choices
) -> dict[str, torch.nn.Module]:
    """The next modules to try, inside those that were left out, except for what never ran."""
    return {
        inner: child
        for path, module in modules.items()
        if reasons.get(path)
        for name, child in module.named_children()
        if choices.is_worth(inner := f"{path}.{name}" if path else name)
    }


def _graphed(
    module: torch.nn.Module, seen: Observations, choices: Choices, lane: Lane
) -> tuple[GraphedModule, str]:
    """The module with its graphs, and why some of its calls have none. Raises `_LeftOut`."""
    if not seen.calls:
        raise _LeftOut(_NOT_CALLED)
    forward = module.forward
    graphs: dict[Signature, list[Graph]] = {}
    troubles: list[str] = []
    left = choices.most_graphs
    for signature, observed in seen.calls.items():
        count = min(left, observed.at_once if observed.given is not None else 1)
        trouble = observed.trouble
        if not trouble and count:
            made, trouble = _captured(module, observed, (count, choices, lane))
            if made:
                graphs[signature] = made
                left -= len(made)
        if trouble:
            troubles.append(trouble)
    if not graphs:
        raise _LeftOut(troubles[0])
    return GraphedModule(module, forward, Guard(module), graphs), "; ".join(dict.fromkeys(troubles))


def _captured(
    module: torch.nn.Module, observed: Observed, how: tuple[int, Choices, Lane]
) -> tuple[list[Graph], str]:
    """Graphs of one call, or the reason why there are none; state is afterwards as it was."""
    count, choices, lane = how
    before = snapshot({"module": module})
    made: list[Graph] = []
    try:
        for _ in range(count):
            body = Body(module, module.forward, observed)
            static = static_tensors(observed)
            made.append(_graph(ToCapture(body, static, observed, choices, lane)))
    except (GraphDoctorError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        cause = true_cause(error)
        place = location_of(cause)
        where = f" ({place.file}:{place.line})" if place is not None else ""
        return made, in_words(cause) + where
    finally:
        before.restore()
    return made, ""


def _graph(call: ToCapture) -> Graph:
    """A pair of graphs where something wants gradients, else one of the forward."""
    return TrainingGraph(call) if call.observed.wants_gradients else ForwardGraph(call)
