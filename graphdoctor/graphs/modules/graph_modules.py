"""Capture the modules at given paths that a run of the step calls, where they can be captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from graphdoctor.device.observe.dropout_states import last_dropout_states
from graphdoctor.graphs.cause import in_words, location_of, true_cause
from graphdoctor.graphs.guards import Guard, Modes, all_hooks, has_global_hooks
from graphdoctor.graphs.modules.call_graphs import (
    Body,
    Choices,
    Graph,
    InferenceGraph,
    Lane,
    ToCapture,
    TrainingGraph,
    static_tensors,
)
from graphdoctor.graphs.modules.graphed_modules import GraphedModule, GraphedModules
from graphdoctor.graphs.modules.observe import Observations, Observed, Signature, observe
from graphdoctor.record.scopes import module_paths
from graphdoctor.target.state.clone import memory_of
from graphdoctor.target.state.snapshot import snapshot
from graphdoctor.target.state.walk import Walk
from graphdoctor.target.target import Inputs
from graphdoctor.values.errors import GraphDoctorError

# By name: most of them live in parts of torch that need not be there.
_WRAPPERS = {
    "DistributedDataParallel": "it synchronizes gradients while the backward pass runs",
    "DataParallel": "it copies the module to several devices in each call",
    "FullyShardedDataParallel": "it gathers and frees its parameters in each call",
    "FSDPModule": "it gathers and frees its parameters in each call",
    "OptimizedModule": "it is compiled by torch.compile already",
    "ScriptModule": "it is TorchScript, whose forward cannot be replaced",
}


def wrapper_of(modules: Iterable[torch.nn.Module]) -> str:
    """The first wrapper among them that graphs do not go with, in a sentence; "" for none."""
    for module in modules:
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                return f"{kind.__name__} cannot be graphed in parts: {_WRAPPERS[kind.__name__]}"
        if getattr(module, "_compiled_call_impl", None) is not None:
            return f"{type(module).__name__} is compiled by its compile() already"
    return ""


def reason_against(module: torch.nn.Module) -> str:
    """Why this module cannot be graphed as a whole; "" where it can be tried."""
    inner = list(module.modules())
    return (
        wrapper_of(inner)
        or graphed_already(module)
        or _hooked(module, inner)
        or _unusable_tensor(module)
    )


def graphed_already(model: torch.nn.Module) -> str:
    """The first module in it that make_graphed_callables was given, in a sentence; "" for none."""
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if "make_graphed_callables" in getattr(forward, "__qualname__", ""):
            return f"{type(module).__name__} is graphed by make_graphed_callables already"
    return ""


def _hooked(module: torch.nn.Module, inner: Iterable[torch.nn.Module]) -> str:
    """The module's own hooks run around its forward, and do not matter."""
    if has_global_hooks():
        return "a hook for all modules is registered, which a replay would not run"
    for each in inner:
        if each is not module and any(all_hooks(each)):
            return f"the {type(each).__name__} inside it has a hook, which a replay would not run"
    return ""


def _unusable_tensor(module: torch.nn.Module) -> str:
    for name, tensor in module.named_parameters():
        if torch.nn.parameter.is_lazy(tensor):
            return f"its parameter {name} has no shape yet"
        if tensor._backward_hooks:
            return (
                f"its parameter {name} has a gradient hook, which would be captured and run twice"
            )
    for name, buffer in module.named_buffers():
        if buffer.requires_grad:
            return f"its buffer {name} requires grad, and only parameters may"
    for name, held in [*module.named_parameters(), *module.named_buffers()]:
        if not held.is_cuda:
            return f"{name} is not on the GPU"
    return ""


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
    at which modules are tried. `restore()` is called after it, and after the captures of a module that is
    tried alone, to put state back. Neither may put back a module's attributes while `run` is under way:
    that would take away what watches them. Raises what `run` raises.
    """
    choices, lane, modes = choices or Choices(), Lane(), Modes(autocast=False)
    made: dict[str, GraphedModule] = {}
    left_out: dict[str, str] = {}
    notes: dict[str, str] = {}
    waiting = {path: module for path, module in modules.items() if choices.is_worth(path)}
    met: set[int] = set()
    while waiting := _not_met(waiting, met):
        reasons = {path: reason_against(module) for path, module in waiting.items()}
        fit = {path: module for path, module in waiting.items() if not reasons[path]}
        try:
            seen = observe(fit, run, modes) if fit else {}
        finally:
            restore()
        for path, module in fit.items():
            try:
                # To put all of it back for each of many modules would take longer than what is their own.
                how = _How(choices, lane, modes, restore if len(fit) == 1 else None)
                made[path], notes[path] = _graphed(module, seen[path], how)
            except _LeftOut as left:
                reasons[path] = str(left)
        left_out.update({path: reason for path, reason in reasons.items() if reason})
        # Next are the modules inside those that were left out, except for what never ran.
        waiting = {
            inner: child
            for path, module in waiting.items()
            if reasons.get(path)
            for name, child in module.named_children()
            if choices.is_worth(inner := f"{path}.{name}" if path else name)
        }
    return GraphedModules(made, left_out, {path: note for path, note in notes.items() if note})


def _not_met(modules: Mapping[str, torch.nn.Module], met: set[int]) -> dict[str, torch.nn.Module]:
    """Each module once, though it may stand in several places."""
    found: dict[str, torch.nn.Module] = {}
    for path, module in modules.items():
        if id(module) not in met:
            met.add(id(module))
            found[path] = module
    return found


@dataclass(frozen=True, slots=True)
class _How:
    """With what modules are graphed, and what puts all state back where only one is."""

    choices: Choices
    lane: Lane
    modes: Modes
    restore: Callable[[], None] | None


def _graphed(module: torch.nn.Module, seen: Observations, how: _How) -> tuple[GraphedModule, str]:
    """The module with its graphs, and why some of its calls have none. Raises `_LeftOut`."""
    if not seen.calls:
        raise _LeftOut(_NOT_CALLED)
    captured: dict[Signature, tuple[Inputs, list[Graph]]] = {}
    reasons: list[str] = []
    left = how.choices.most_graphs
    for signature, observed in seen.calls.items():
        count = min(left, observed.at_once if observed.given is not None else 1)
        reason = observed.reason
        if not reason and count:
            made, reason = _captured(module, observed, count, how)
            if made:
                captured[signature] = made[0][0], [graph for _, graph in made]
                left -= len(made)
        if reason:
            reasons.append(reason)
    if not captured:
        raise _LeftOut(reasons[0])
    return GraphedModule(module, how.modes, captured), "; ".join(dict.fromkeys(reasons))


def _captured(
    module: torch.nn.Module, observed: Observed, count: int, how: _How
) -> tuple[list[tuple[Inputs, Graph]], str]:
    """Graphs of one call, or the reason why there are none; state is afterwards as it was."""
    restore = how.restore or snapshot({"module": module}).restore
    made: list[tuple[Inputs, Graph]] = []
    try:
        for _ in range(count):
            body = Body(module, module.forward, observed)
            call = ToCapture(body, static_tensors(observed), observed, how.choices, how.lane)
            if not made and (reason := _reason_against_call(call, module)):
                return made, reason
            kind = TrainingGraph if observed.wants_gradients else InferenceGraph
            made.append((call.described, kind(call)))
    except (GraphDoctorError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        cause = true_cause(error)
        place = location_of(cause)
        where = f" ({place.file}:{place.line})" if place is not None else ""
        return made, in_words(cause) + where
    finally:
        restore()
    return made, ""


def _reason_against_call(call: ToCapture, module: torch.nn.Module) -> str:
    """Why a graph would not stand for the call, though it could be captured."""
    own = memory_of((*Guard({"": module}, around=module).tensors, *last_dropout_states()))
    if call.reads_foreign_memory(own):
        return (
            "it reads a tensor on the GPU that is neither an argument nor reached from the module, "
            "so nothing would tell when it is replaced"
        )
    return ""


def modules_by_path(roots: Mapping[str, object]) -> dict[str, torch.nn.Module]:
    """Every module that the roots reach; the outermost may have the path ""."""
    found: dict[int, torch.nn.Module] = {}
    with torch._C.DisableTorchFunction():
        for _, value, _ in Walk(roots):
            if isinstance(value, torch.nn.Module):
                found.update((id(module), module) for module in value.modules())
    return {path: found[key] for key, path in module_paths(roots).items() if key in found}
