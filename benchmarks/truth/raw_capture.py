"""A module or training step with its inputs -> whether CUDA captures it, with nothing of graphdoctor in between."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch


def attempt(target: Any) -> dict[str, Any]:
    """Warms up on a side stream, as PyTorch's documentation asks, then captures and replays once."""
    step, inputs = on_the_gpu(target)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(**inputs)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            kept = step(**inputs)
        graph.replay()
        torch.cuda.synchronize()
    except Exception as error:
        first = innermost(error)
        return {"raw": "refused", "place": place_of(first), "error": words(first)}
    del kept
    return {"raw": "captured", "place": "", "error": ""}


def on_the_gpu(target: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    if isinstance(target, tuple):
        model, fresh = target
        model.cuda()
        return torch.no_grad()(model), moved(fresh())
    return target.step, moved(target.inputs())


def moved(inputs: dict[str, Any]) -> dict[str, Any]:
    return {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in inputs.items()}


def innermost(error: BaseException) -> BaseException:
    """What the step raised: leaving the capture raises an error of its own over it."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def place_of(error: BaseException) -> str:
    """The nearest line outside torch, by the name of its file without folders."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "/torch/" not in frame.filename and "raw_capture" not in frame.filename:
            return f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
    return ""


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0][:160]
