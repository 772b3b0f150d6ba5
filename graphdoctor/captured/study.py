"""Studies a model's forward on the device: gives its verified graph, or the reason why there is none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import msgspec
import torch

from graphdoctor.captured.forward_graph import GuardedGraph, Setup, Traits
from graphdoctor.captured.obstacles import (
    branching_paths,
    is_within,
    obstacles,
    written_kinds,
)
from graphdoctor.captured.parts import Parts, graph_parts
from graphdoctor.device.emulated import EmulationLimit, entered
from graphdoctor.device.open import AnyDevice
from graphdoctor.device.processes.thrift import collecting_rarely
from graphdoctor.device.real import WatchedDevice
from graphdoctor.estimate import launches
from graphdoctor.estimate.graph_memory import graph_memory
from graphdoctor.graphs.calls import Unwatchable
from graphdoctor.graphs.calls.tally import audits_paused, is_auditing
from graphdoctor.graphs.guards import Modes
from graphdoctor.graphs.modules import modules_by_path
from graphdoctor.graphs.whole_step import CapturedStep, detached
from graphdoctor.operators import draws
from graphdoctor.pipeline import Setting, generators_kept, put_back, stages
from graphdoctor.proof.stage import prove_whole_step
from graphdoctor.record import Session
from graphdoctor.strategies.evidence import Studied
from graphdoctor.target import Inputs, Target
from graphdoctor.target.build import Origin, build
from graphdoctor.target.description import Description
from graphdoctor.target.frames import locate
from graphdoctor.target.state.tree import leaves
from graphdoctor.values.errors import RaisesInCapture
from graphdoctor.values.locations import bracketed
from graphdoctor.values.recording import Iteration
from graphdoctor.values.speed import GraphMemory

NO_GPU = "there is no GPU here that torch can use"


@dataclass(frozen=True)
class Study:
    """What is known about one model on inputs of one make.

    `obstacles` are sentences: why the forward pass as a whole is not replayed; none where `graph`
    is there. `launches` is of one forward pass, by module path; "" is the model itself.
    """

    obstacles: tuple[str, ...]
    launches: dict[str, int] = field(default_factory=dict)
    graph: GuardedGraph | None = None
    parts: Parts | None = None
    memory: GraphMemory | None = None


def study(model: torch.nn.Module, inputs: Inputs, device: AnyDevice, setup: Setup) -> Study:
    """Record, diagnose, capture and verify the forward pass; everything else stays as it was.

    Raises `UserCodeError` if the model itself fails on these inputs. A model that fails only while it is
    captured is not captured.
    """
    try:
        with alone(), put_back(target := target_of(model, inputs)):
            found = _study(target, device, setup)
    except (EmulationLimit, RaisesInCapture) as limit:
        return Study((str(limit),))
    with torch.no_grad():  # as the forward ran
        changed = found.graph.state.difference() if found.graph is not None else ""
    if found.graph is None or not changed:
        return found
    found.graph.release()
    _leave_pool(setup)
    why = (
        f"calls leave something behind in Python ({changed}): call the model once, then capture it"
    )
    return replace(found, obstacles=(why,), graph=None)


@contextmanager
def alone() -> Iterator[None]:
    """Outside inference mode, whose tensors nobody may write to later, and without autocast's cache and audits.

    A cached copy of a weight would be all that the graph ever sees of it.
    """
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    torch.clear_autocast_cache()
    try:
        with (
            audits_paused(),
            generators_kept(),
            collecting_rarely(),
            torch.inference_mode(False),
        ):
            yield
    finally:
        torch.set_autocast_cache_enabled(caches)


def no_device() -> str:
    """Why nothing can be captured here; "" if something can. The first reason is also a warning.

    Asked when something is to be captured, not at import: asking CUDA fixes which devices a program sees.
    """
    if entered() is not None or torch.cuda.is_available():
        return ""
    _warn_without_gpu()
    return NO_GPU


@cache
def _warn_without_gpu() -> None:
    """Once in a process, at the user's line."""
    message = "graphdoctor.capture() changes nothing here, since torch finds no GPU: everything runs eagerly."
    place = locate().location
    if place is None:
        warnings.warn(message, stacklevel=2)
    else:
        warnings.warn_explicit(message, UserWarning, place.file, place.line)


@contextmanager
def watched_device() -> Iterator[AnyDevice]:
    """The device, watched for a recording: the caller's emulated one, or else the real one."""
    emulated = entered()
    if emulated is not None:
        yield emulated
        return
    with WatchedDevice() as watched:
        yield watched


def target_of(model: torch.nn.Module, inputs: Inputs) -> Target:
    """The forward pass without gradients, on inputs like these."""
    name = type(model).__name__
    description = Description(model, inputs=inputs)
    origin = Origin(name, "", "the given module")
    return build(description, origin, mode="inference", close=lambda: None)


def _study(target: Target, device: AnyDevice, setup: Setup) -> Study:
    setting = Setting(device)
    studied = stages.study(target, setting)
    known = known_from(studied)
    setup.context.watch(studied.recording)
    if not known.obstacles:
        made = _capture(studied, setup)
        if isinstance(made, GuardedGraph):
            memory = graph_memory(studied.recording.captured[-1], setting.profile)
            return replace(known, graph=made, memory=_measured(memory, device, setup))
        known = replace(known, obstacles=(made,))
    if not setup.parts:
        return known
    modules = safe_modules(studied)
    parts = graph_parts(
        studied.session, modules, known.launches, context=setup.context, ran=studied.ran
    )
    if isinstance(parts, str):
        return replace(known, obstacles=(*known.obstacles, parts))
    return replace(known, parts=parts)


def _measured(memory: GraphMemory, device: AnyDevice, setup: Setup) -> GraphMemory:
    """With what the pool of the graphs really holds."""
    if device.kind == "emulated" or setup.pool is None:
        return memory
    return msgspec.structs.replace(memory, measured_bytes=setup.pool.reserved_bytes)


def known_from(studied: Studied) -> Study:
    """What is known about the model before anything is captured."""
    return Study(tuple(obstacles(studied)), _launches_of(studied.recording.captured[-1]))


def safe_modules(studied: Studied) -> dict[str, torch.nn.Module]:
    """The modules that are safe to capture by themselves, by path."""
    paths = modules_by_path(studied.session.target.roots)
    branching = branching_paths(studied.recording)
    return {
        path: paths[path]
        for path in studied.plan.safe_modules
        if path in paths and not any(is_within(one, path) for one in branching)
    }


def _launches_of(iteration: Iteration) -> dict[str, int]:
    """What each module puts on the GPU, with all inside it; "" is the model."""
    counts: dict[str, int] = {}
    for op in iteration.ops:
        if launched := launches(op):
            path = op.module
            while path:
                counts[path] = counts.get(path, 0) + launched
                path = path.rpartition(".")[0]
            counts[""] = counts.get("", 0) + launched
    return counts


def _capture(studied: Studied, setup: Setup) -> GuardedGraph | str:
    session = studied.session
    outcome, made = prove_whole_step(session, ran=studied.ran, pool=setup.pool)
    if outcome.status == "refused":
        return f"the capture was refused{bracketed(outcome.location)}: {outcome.reason}"
    if made is None:
        _leave_pool(setup)
        assert outcome.verification is not None
        found = outcome.verification
        return f"replays could not be shown to be right ({found.status}): {found.reason}"
    try:
        return _graph_of(session, made, studied.recording.captured, setup)
    except Unwatchable as reason:
        made.release()
        _leave_pool(setup)
        return str(reason)


def _leave_pool(setup: Setup) -> None:
    """The graph that was given back may have been the last of its pool."""
    if setup.pool is not None:
        setup.pool.reset()


def _graph_of(
    session: Session, made: CapturedStep, iterations: Sequence[Iteration], setup: Setup
) -> GuardedGraph:
    writes = any(written_kinds(iteration) for iteration in iterations)
    is_random = any(draws(op) for iteration in iterations for op in iteration.ops)
    traits = Traits(
        repeats=not writes and not is_random,
        launches=_launches_of(iterations[-1]).get("", 0),
        hands_out=not setup.clones,
        is_audited=is_auditing(),
    )
    session.start.restore()
    return GuardedGraph(made, traits, setup, dict(session.target.roots))


def study_training(
    model: torch.nn.Module, inputs: Inputs, device: AnyDevice, context: Modes
) -> tuple[Study, Parts | str]:
    """Record a forward and a backward pass, and graph what is safe in them.

    The loss is the sum of all outputs that want gradients; the caller's own comes in its place.
    """
    try:
        with alone():
            given = target_of(model, inputs)
            target = replace(given, mode="training", step=_forward_and_backward(model))
            with put_back(target):
                return _study_both(model, target, device, context)
    except (EmulationLimit, RaisesInCapture) as limit:
        return Study((str(limit),)), str(limit)


def _study_both(
    model: torch.nn.Module, target: Target, device: AnyDevice, context: Modes
) -> tuple[Study, Parts | str]:
    studied = stages.study(target, Setting(device))
    known = known_from(studied)
    context.watch(studied.recording)
    wanted = safe_modules(studied) if known.obstacles else {"": model}
    made = graph_parts(studied.session, wanted, known.launches, context=context, ran=studied.ran)
    return known, made


def _forward_and_backward(model: torch.nn.Module) -> Callable[..., object]:
    def step(*args: object, **kwargs: object) -> object:
        model.zero_grad(set_to_none=True)
        with torch.enable_grad():
            outputs = model(*args, **kwargs)
            wanting = [leaf for leaf in leaves(outputs, "output").values() if _wants_gradient(leaf)]
            if wanting:
                torch.autograd.backward([leaf.float().sum() for leaf in wanting])  # type: ignore[attr-defined]
        return detached(outputs)

    return step


def _wants_gradient(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point()
