"""The fast path of a captured model: a function that answers calls of one form, which a graph has served before.

It checks what decides whether the graph may start, copies the inputs, launches the graph and builds the outputs, and
checks the model's state while the GPU works. A graph that must not run for nothing is launched after that check.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from graphdoctor.captured.forward_graph import Answering
from graphdoctor.graphs.calls import CallForm
from graphdoctor.graphs.guards import Modes

if TYPE_CHECKING:
    from graphdoctor.captured.replays import Replays


NOT_KNOWN = object()
KnownCall = Callable[["Replays", tuple[Any, ...], dict[str, Any]], object]


def unknown(owner: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """No call has been answered yet."""
    return NOT_KNOWN


def known_call(
    form: CallForm,
    graph: Answering,
    *,
    context: Modes,
    parameters: Sequence[torch.Tensor],
    lock: threading.Lock,
) -> KnownCall:
    """A function that returns the answer to a call of this form, or `NOT_KNOWN` for one that needs more checks.

    That is any other call, one that wants gradients of `parameters`, one under other modes than the
    `context`, and one while the `lock` is held.
    """
    check, is_plain, tensors_of = form
    stream_number, may_start = context.stream_number, context.without_gradients(parameters)
    state, checks_first = graph.state, not graph.traits.may_run_for_nothing
    load, replay, build = graph.forward.load, graph.forward.replay, graph.forward.build
    acquire, release = lock.acquire, lock.release

    def answer(owner: Replays, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        try:
            tensors: Any = args if is_plain and not kwargs else tensors_of(args, kwargs)
            if not check(*tensors) or not may_start(stream := stream_number()):
                return NOT_KNOWN
        except Exception:  # another number of tensors, or a switch that does not answer
            return NOT_KNOWN
        if not acquire(False):
            return NOT_KNOWN
        try:
            if owner.is_doubtful or (checks_first and not state.is_same()):
                return NOT_KNOWN
            if stream != owner.on_stream:
                owner.follow_stream()
            load(tensors)
            replay()
            found = build(tensors)
            why = "" if checks_first or state.is_same() else owner.change_of(graph)
            if not why:
                graph.served += 1
                return found
        finally:
            release()
        return owner.fall_back(why, args, kwargs)

    return answer
