"""A call -> its CUDA graph and the kinds of its nodes, or the error that ended the capture."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

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
