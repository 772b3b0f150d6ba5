"""One sample of an operator on CUDA -> does it wait, is it captured, does a replay agree."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from op_calls import Dispatched, Waits, described
from op_db import Sample
from op_graph import captured, first_line
from op_replay import replayed, tensors


@dataclass(frozen=True)
class Watching:
    """What all samples of one process share: the stream, and who hears that the host waits."""

    stream: Any
    traces: list[Callable[[], None]]


def with_backward(sample: Sample) -> Callable[[], Any]:
    """A call that also computes the gradients of what it was given."""
    leaves = [leaf for leaf in tensors(sample.arguments) if leaf.requires_grad]
    outputs = [leaf for leaf in tensors(sample.call()) if leaf.requires_grad]
    if not leaves or not outputs:
        raise ValueError("nothing requires a gradient")
    ones = [torch.ones_like(output) for output in outputs]
    del outputs

    def call() -> Any:
        result = sample.call()
        made = [leaf for leaf in tensors(result) if leaf.requires_grad]
        return result, torch.autograd.grad(made, leaves, ones, allow_unused=True)

    return call


def examine(sample: Sample, fresh: Sample | None, watching: Watching, *, backward: bool) -> Any:
    """Everything that is found out about one sample, as a JSON object."""
    started = time.monotonic()
    found: dict[str, Any] = {"arguments": _arguments(sample)}
    try:
        call = with_backward(sample) if backward else sample.call
        _warm_up(call, watching.stream)
        dispatched = _dispatched(call, watching, found)
    except Exception as error:
        found["eager_error"] = first_line(error)
        return found
    found |= captured(call, watching.stream)
    graph, outputs = found.pop("graph"), found.pop("outputs")
    if graph is None:
        found["failing"] = _failing(call, watching.stream, found["error"])
    elif fresh is None:
        found["replay"] = "skipped: no fresh values"
    else:
        found |= replayed(
            (graph, outputs),
            (sample, fresh, call),
            random=dispatched.is_random or dispatched.has_no_values,
        )
    found["seconds"] = round(time.monotonic() - started, 3)
    return found


def runtime_calls(sample: Sample, watching: Watching) -> Any:
    """What one eager call asks of the CUDA runtime, and how many kernels ran, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, Any] = {"arguments": _arguments(sample)}
    try:
        _warm_up(sample.call, watching.stream)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            sample.call()
            torch.cuda.synchronize()
    except Exception as error:
        found["eager_error"] = first_line(error)
        return found
    events = list(profiled.events() or ())
    device = [event for event in events if "CUDA" in str(event.device_type)]
    host = Counter(event.name for event in events if "CPU" in str(event.device_type))
    found["runtime"] = {name: host[name] for name in sorted(host) if name.startswith("cu")}
    found["copies"] = dict(Counter(e.name for e in device if e.name.startswith("Mem")))
    found["kernels"] = sum(not event.name.startswith("Mem") for event in device)
    return found


def _arguments(sample: Sample) -> str:
    return ", ".join(filter(None, map(described, (sample.input, *sample.args, sample.kwargs))))[
        :160
    ]


def _warm_up(call: Callable[[], Any], stream: Any) -> None:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _dispatched(call: Callable[[], Any], watching: Watching, found: dict[str, Any]) -> Dispatched:
    waits = Waits()
    with waits.watched(watching.traces):
        call()
    inside = Waits()
    with inside.watched(watching.traces), Dispatched(inside) as seen:
        call()
    torch.cuda.synchronize()
    found["waits"] = waits.count
    found["aten"] = seen.calls
    if seen.left_out:
        found["aten_left_out"] = seen.left_out
    found["random"] = seen.is_random
    return seen


def _failing(call: Callable[[], Any], stream: Any, error: str) -> list[Any] | None:
    """The operator that a second capture fails in, where it fails alike."""
    seen = Dispatched()

    def watched() -> Any:
        with seen:
            return call()

    with suppress(Exception):
        again = captured(watched, stream)
        return seen.raised if again.get("error") == error else None
    return None
