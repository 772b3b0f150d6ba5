"""A form that calls had, and the graph that served it -> a function that answers other calls of this form.

It goes straight through all that has to be asked, in one function that is written out for the form: what
decides whether the graph may start, then the inputs' copies, the launch and the outputs, and the look at the
model while the GPU is at work. A graph that must not run for nothing is launched after that look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from graphdoctor.captured.forward_graph import Answering
from graphdoctor.graphs.calls import CallForm
from graphdoctor.graphs.guards import Modes
from graphdoctor.graphs.guards.written_out import all_of, filled_in


class Owner(Protocol):
    """Whose calls are answered. `is_doubtful`: no graph may answer without a longer look."""

    is_doubtful: bool
    on_stream: int

    def follow_stream(self) -> None: ...

    def change_of(self, graph: Answering) -> str: ...

    def fall_back(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object: ...


NOT_KNOWN = object()
KnownCall = Callable[[Owner, tuple[Any, ...], dict[str, Any]], object]

_BEFORE = """
def made({names}):
    def answered(owner, args, kwargs):
        try:
            if not ({is_of_form}):
                return not_known
            stream = stream_number()
            if not ({may_start}):
                return not_known
        except Exception:
            return not_known
        if not acquire(False):
            return not_known
        try:
            if owner.is_doubtful:
                return not_known
"""
_LOOK = """
            try:
                is_same = {is_same}
            except Exception:
                is_same = False
"""
_LAUNCH = """
            if stream != owner.on_stream:
                owner.follow_stream()
            load({tensors})
            replay()
            answer = build({tensors})
"""
_LOOKS_AFTER = f"""{_BEFORE}{_LAUNCH}{_LOOK}
            why = "" if is_same else owner.change_of(graph)
            if not why:
                graph.served += 1
                return answer
        finally:
            release()
        return owner.fall_back(why, args, kwargs)
    return answered
"""
_LOOKS_FIRST = f"""{_BEFORE}{_LOOK}
            if not is_same:
                return not_known{_LAUNCH}
            graph.served += 1
            return answer
        finally:
            release()
    return answered
"""


def unknown(owner: Owner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
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
    """A function that gives the answer to a call of this form, or `NOT_KNOWN` for what takes a longer look.

    That is any other call, one that wants gradients of `parameters`, one under other modes than the
    `context`, and one while the `lock` is held.
    """
    forward, model = graph.forward, graph.state.asks
    modes = context.asks_without_gradients(parameters)
    inputs = graph.inputs.question(form.tensors)
    of_form = [form.asks.expression, *([inputs.expression] if inputs.given else [])]
    given = {
        **model.given,
        **modes.given,
        **form.asks.given,
        **inputs.given,
        "not_known": NOT_KNOWN,
        "stream_number": context.stream_number,
        "acquire": lock.acquire,
        "release": lock.release,
        "graph": graph,
        "load": forward.load,
        "replay": forward.replay,
        "build": forward.build,
    }
    made: KnownCall = filled_in(
        _LOOKS_AFTER if graph.traits.may_run_for_nothing else _LOOKS_FIRST,
        given,
        is_of_form=all_of(of_form),
        may_start=modes.expression,
        is_same=model.expression,
        tensors=form.tensors,
    )
    return made
