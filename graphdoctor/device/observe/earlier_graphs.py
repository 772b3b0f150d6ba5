"""Notices a backward pass that goes on into an autograd graph from before the step, on that graph's stream.

Autograd runs a node of the backward pass on the stream on which the node was made: that of an operator, and
the one that accumulates a parameter's gradient. No capture may depend on the default stream.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel

from graphdoctor.device.observe.operators import Call, Observer
from graphdoctor.device.observe.patches import Patches
from graphdoctor.target.state.accumulations import held, is_data_parallel, marked
from graphdoctor.target.state.snapshot import named_tensors
from graphdoctor.values.figures import joined
from graphdoctor.values.host_events import DdpOnDefaultStream, EarlierGraph, HostEvent

LEGACY = "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
_KEPT_BY, _LOOKED = "graphdoctor: kept alive by", "graphdoctor: looked at"
_ACCUMULATION = "a gradient's accumulation"
_NAMED = 3
_NO_FORWARD = 2**64 - 1  # the sequence number of AccumulateGrad, which has no forward operator


class Telling(Protocol):
    """A device that tells its observers of what happens."""

    def event(self, event: HostEvent) -> None: ...


class EarlierGraphs(Observer):
    """Sees a capture's operators, or those of a step as if it were captured, and tells once."""

    def __init__(
        self, device: Telling, was_captured: Callable[[int], bool] = lambda number: False
    ) -> None:
        self._device = device
        self._was_captured = was_captured
        self.first_node = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        # Each thread numbers its nodes by itself. The engine's thread of a GPU makes those of a gradient penalty.
        self._first_of_threads = {threading.get_ident(): self.first_node}
        self._has_told = False

    def before(self, call: Call) -> None:
        if self._has_told:
            return
        thread, now = threading.get_ident(), torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        made = range(self._first_of_threads.setdefault(thread, now - 1), now)  # the call has a node
        node = torch._C._current_autograd_node()
        if node is None:
            return
        number = node._sequence_nr()
        if number == _NO_FORWARD:
            metadata: Any = node.metadata
            kept_by = metadata.get(_KEPT_BY, ())
            name = f"{_ACCUMULATION}, kept alive by {joined(kept_by)}" if kept_by else ""
        else:
            is_made = number >= self.first_node or number in made or self._was_captured(number)
            name, kept_by = "" if is_made else node.name(), ()
        if name:
            self._has_told = True
            self._device.event(EarlierGraph(name, refusal=LEGACY, kept_by=kept_by))


def mark_held_accumulations(roots: Mapping[str, object], holders: Sequence[str] = ()) -> None:
    """Mark the accumulations of gradients that something from before the step keeps alive.

    Autograd makes one for a parameter where there is none, and it stays on the stream of that time.
    Variables of the program among `holders`, with their lines, and tensors of the roots, by their paths, are
    named together: all have to let go. Else what keeps a node is named, as far as that is known.
    """
    marked(roots, _KEPT_BY)  # by an analysis before this one
    # torch 2.13 or newer has this process-wide setting.
    is_overridden = getattr(torch._C, "_override_stale_capture_stream", None)
    if is_overridden is not None and is_overridden():
        return
    if nodes := _held_by_others(roots):
        variables = tuple(holder for holder in holders if holder.startswith("`"))
        # A variable of the program's own is a root, too: `holders` say on which line it is bound.
        bound = {holder[1:].partition("`")[0] for holder in variables}
        paths = {
            node: [
                f"`{path}`" for path in each if re.split(r"[.[]", path, maxsplit=1)[0] not in bound
            ]
            for node, each in _paths_to_accumulations(named_tensors(roots)).items()
        }
        names = [*dict.fromkeys(path for node in nodes for path in paths.get(node, ()))]
        more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
        of_model = (*names[:_NAMED], *more)
        for node in nodes:
            by = (*variables, *of_model) if variables or paths.get(node) else tuple(holders)
            node.metadata[_KEPT_BY] = by or ("a tensor from before",)


def renew_held_accumulations(roots: Mapping[str, object]) -> None:
    """Make autograd create new AccumulateGrad nodes for these parameters, on the stream of the next forward pass.

    Graphs with the old nodes still add to the same gradients. The nodes of DistributedDataParallel and of
    subclasses of tensors are kept.
    """
    for node in _held_by_others(roots):
        leaf = node.variable
        if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
            continue
        data = leaf.data
        other = torch.float16 if leaf.dtype != torch.float16 else torch.float32
        leaf.data = data.new_empty(0, dtype=other)  # torch drops the accumulation with the dtype
        leaf.data = data


def drop_unreachable_accumulations(roots: Mapping[str, object]) -> None:
    """Collect garbage if it may hold AccumulateGrad nodes of these parameters, which stay on the stream of their time.

    A collection takes as long as several steps, so it runs only if something holds such a node.
    """
    if held(roots, _LOOKED):
        gc.collect()


def _held_by_others(roots: Mapping[str, object]) -> list[Any]:
    """The accumulations that something else than DistributedDataParallel keeps alive."""
    if not held(roots, _LOOKED):
        return []
    gc.collect()  # what nobody reaches holds them no longer than until Python looks
    nodes = held(roots, _LOOKED)
    parallel = _parameters_of_data_parallel() if nodes else set()
    return [node for node in nodes if node.variable not in parallel]


def _parameters_of_data_parallel() -> set[torch.Tensor]:
    """Those of each DistributedDataParallel that is alive, also around the roots.

    It holds the accumulations itself, made on the stream on which it was, and no parameter leads to it:
    only Python's collector knows of it.
    """
    objects = gc.get_objects()
    types = {id(type(each)): type(each) for each in objects}  # some cannot be hashed
    kinds = {key for key, kind in types.items() if is_data_parallel(kind)}
    return {
        parameter
        for each in objects
        if id(type(each)) in kinds and hasattr(each, "_modules")
        for parameter in each.parameters()
    }


def _paths_to_accumulations(tensors: Mapping[str, torch.Tensor]) -> dict[Any, list[str]]:
    """Which of these tensors hang on each, by path."""
    found: dict[Any, list[str]] = {}
    for path, tensor in tensors.items():
        waiting, seen = [tensor.grad_fn], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node._sequence_nr() == _NO_FORWARD:
                found.setdefault(node, []).append(path)
            waiting += [earlier for earlier, _ in node.next_functions]
    return found


class WhereMade:
    """The modules that were made on the default stream, from when it looks at their making on."""

    def __init__(self, device: Telling, is_on_default_stream: Callable[[], bool]) -> None:
        self._device, self._is_on_default_stream = device, is_on_default_stream
        self._made: WeakSet[Any] = WeakSet()

    def look_at_making(self, patches: Patches) -> None:
        def initializing(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def _ddp_init_helper(module: Any, *args: Any, **kwargs: Any) -> Any:
                if module.device_type == "cuda" and self._is_on_default_stream():
                    self._made.add(module)
                return original(module, *args, **kwargs)

            return _ddp_init_helper

        patches.replace(DistributedDataParallel, "_ddp_init_helper", initializing)

    def tell_of_runs(self, patches: Patches) -> None:
        """Let the device tell where such a module runs and takes gradients."""

        def running(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def _pre_forward(module: Any, *inputs: Any, **kwargs: Any) -> Any:
                if module in self._made and torch.is_grad_enabled():
                    event = DdpOnDefaultStream("DistributedDataParallel()", refusal=LEGACY)
                    self._device.event(event)
                return original(module, *inputs, **kwargs)

            return _pre_forward

        patches.replace(DistributedDataParallel, "_pre_forward", running)
