"""One sample of an operator on CUDA -> does it wait, is it captured, does a replay agree."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from op_calls import Dispatched, Waits, described
from op_db import Sample
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten


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


_NODES = ("kernel", "memcpy", "memset", "host", "child", "empty", "wait", "record")


def captured(call: Callable[[], Any], stream: Any) -> dict[str, Any]:
    graph = _new_graph()
    cause: BaseException | None = None
    outputs: Any = None
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            try:
                outputs = call()
            except Exception as error:
                cause = error  # ending the capture raises another error, which only follows
                raise
        nodes = _nodes(graph)
    except Exception as error:
        first = cause or error
        return {
            "captures": False,
            "error": first_line(first),
            "error_type": type(first).__name__,
            "graph": None,
            "outputs": None,
        }
    return {"captures": True, "nodes": nodes, "graph": graph, "outputs": outputs}


def _new_graph() -> Any:
    try:
        return torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        return torch.cuda.CUDAGraph()


def _nodes(graph: Any) -> dict[str, int] | None:
    """How many nodes of each kind a captured graph has, asked of the driver."""
    if not hasattr(graph, "raw_cuda_graph"):
        return None
    driver = ctypes.CDLL("libcuda.so.1")
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    if driver.cuGraphGetNodes(handle, None, ctypes.byref(count)) != 0:
        return None
    nodes = (ctypes.c_void_p * max(1, count.value))()
    driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count))
    kinds: Counter[str] = Counter()
    kind = ctypes.c_int()
    for node in nodes[: count.value]:
        driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        kinds[_NODES[kind.value] if kind.value < len(_NODES) else str(kind.value)] += 1
    graph.instantiate()
    return dict(kinds)


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:240]


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def replayed(captured: tuple[Any, Any], with_what: Any, *, random: bool) -> dict[str, Any]:
    graph, outputs = captured
    sample, fresh, call = with_what
    statics, values = tensors(sample.arguments), tensors(fresh.arguments)
    if (reason := _unlike(statics, values)) is not None:
        return {"replay": f"skipped: {reason}"}
    if random:
        return {"replay": "skipped: random or without values"}
    try:
        first = _host(call())
        sources = [value.detach().clone() for value in values]
        expected = _eager(call, statics, sources)
        if _difference(expected, _eager(call, statics, sources)) is not None:
            return {"replay": "skipped: eager disagrees with itself"}
        _set(statics, sources)
        graph.replay()
        torch.cuda.synchronize()
        difference = _difference(expected, _host(outputs))
    except Exception as error:
        return {"replay": f"skipped: {first_line(error)}"}
    changes = _difference(expected, first) is not None
    if difference is None:
        return {"replay": "equal", "fresh_changes_result": changes}
    return {"replay": "different", "difference": difference, "fresh_changes_result": changes}


def _unlike(statics: list[torch.Tensor], values: list[torch.Tensor]) -> str | None:
    if len(statics) != len(values):
        return "another number of tensors"
    for static, value in zip(statics, values, strict=True):
        if static.layout != torch.strided:
            return "not a strided tensor"
        if (static.shape, static.dtype) != (value.shape, value.dtype):
            return "fresh values have other shapes"
    return None


def _eager(call: Callable[[], Any], statics: list[torch.Tensor], sources: Any) -> Any:
    _set(statics, sources)
    return _host(call())


def _set(statics: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for static, source in zip(statics, sources, strict=True):
            static.detach().copy_(source)


def _host(tree: Any) -> Any:
    """Plain tensors on the host, so that comparing them launches nothing."""
    flat, spec = tree_flatten(tree)
    moved = [
        leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in flat
    ]
    return tree_unflatten(moved, spec)


def _difference(expected: Any, actual: Any) -> str | None:
    try:
        torch.testing.assert_close(
            tree_map(_comparable, actual), tree_map(_comparable, expected), equal_nan=True
        )
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        return first_line(error)
    return None


def _comparable(leaf: Any) -> Any:
    return leaf if isinstance(leaf, (torch.Tensor, int, float, complex, bool)) else str(leaf)
