"""A module or training step with its inputs -> what CUDA alone makes of it as a graph.

Nothing of graphdoctor is in between; it only puts the device back after a refusal, for the next question.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from graphdoctor.graphs.capture import device_usable_after_failure

ROUNDS = 3
ROUNDING = 1e-3  # of a tensor's largest value: other kernels may be chosen within a capture
DEVIATIONS = 10  # how many times eager's own deviation, where eager is not deterministic
DEEPEST = 8
# Whole paths: a name alone, such as "/torch/", may stand in the path of every package.
OURS_AND_TORCHS = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parent}/")

Values = list[torch.Tensor]


@dataclass(frozen=True)
class Step:
    """A step on the GPU, what draws its inputs there, and the tensors that it may change."""

    call: Callable[..., Any]
    fresh: Callable[[], dict[str, Any]]
    state: Values


def attempt(target: Any) -> dict[str, Any]:
    """Warms up on a side stream, as PyTorch's documentation asks, captures, and replays beside eager."""
    torch.backends.cudnn.allow_tf32 = False
    try:
        step = on_the_gpu(target)
        static = step.fresh()
        warm_up(step, static)
    except Exception as error:
        return told("does not run", error)
    graph = torch.cuda.CUDAGraph()
    try:
        with (
            device_usable_after_failure(graph),
            torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()),
        ):
            kept = step.call(**static)
        graph.replay()
        torch.cuda.synchronize()
    except Exception as error:
        return told("refused", error)
    try:
        return beside_eager(step, static, graph, kept)
    except Exception as error:
        return told("captured, not compared", error)


def told(raw: str, error: BaseException) -> dict[str, Any]:
    first = innermost(error)
    return {"raw": raw, "place": place_of(first), "error": words(first)}


def warm_up(step: Step, static: dict[str, Any]) -> None:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step.call(**static)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def beside_eager(
    step: Step, static: dict[str, Any], graph: torch.cuda.CUDAGraph, kept: object
) -> dict[str, Any]:
    """Replays on fresh inputs, each against two eager runs from the same state and the same seeds."""
    before = clones(step.state)
    worst = 0.0
    for seed in range(1, ROUNDS + 1):
        values = step.fresh()
        start(step, before, seed)
        for old, new in zip(tensors_of(static), tensors_of(values), strict=True):
            old.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        replayed = clones([*tensors_of(kept), *step.state])
        eager = [eager_run(step, values, before, seed) for _ in range(2)]
        why, off = difference(replayed, *eager)
        worst = max(worst, off)
        if why:
            return {"raw": "differs", "place": "", "error": f"round {seed}: {why}", "worst": worst}
    return {"raw": "captured", "place": "", "error": "", "worst": worst}


def eager_run(step: Step, values: dict[str, Any], before: Values, seed: int) -> Values:
    start(step, before, seed)
    out = step.call(**copied(values))
    torch.cuda.synchronize()
    return clones([*tensors_of(out), *step.state])


def start(step: Step, before: Values, seed: int) -> None:
    """The same state and seeds for a replay and for eager: what the host draws differs from round to round."""
    with torch.no_grad():
        for now, then in zip(step.state, before, strict=True):
            now.copy_(then)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def difference(replayed: Values, one: Values, other: Values) -> tuple[str, float]:
    """Why a replay is not what eager computes, and the worst error, as a share of the largest value."""
    if not len(replayed) == len(one) == len(other):
        return f"{len(replayed)} tensors, and {len(one)} in eager", 0.0
    worst = 0.0
    for place, (mine, first, second) in enumerate(zip(replayed, one, other, strict=True)):
        if mine.shape != first.shape:
            return f"tensor {place} is {list(mine.shape)}, {list(first.shape)} in eager", worst
        if first.shape != second.shape:
            continue
        off, noise, largest = farthest(mine, first), farthest(first, second), top(first)
        worst = max(worst, off / largest if largest else off)
        if not off <= DEVIATIONS * noise + ROUNDING * largest:
            return f"tensor {place} is off by {off:.3g}, its largest value {largest:.3g}", worst
    return "", worst


def farthest(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference; infinite where one of the two is not a number and the other is."""
    if not one.numel():
        return 0.0
    one, other = one.to(torch.complex128), other.to(torch.complex128)
    equal = (one == other) | (one.isnan() & other.isnan())
    return float(torch.where(equal, 0.0, (one - other).abs()).nan_to_num(nan=float("inf")).max())


def top(values: torch.Tensor) -> float:
    finite = values.to(torch.complex128).abs()
    finite = finite[finite.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def clones(values: Values) -> Values:
    return [each.detach().clone() for each in values]


def copied(values: dict[str, Any]) -> dict[str, Any]:
    return tree_map(lambda each: each.clone() if isinstance(each, torch.Tensor) else each, values)


def on_the_gpu(target: Any) -> Step:
    if isinstance(target, tuple):
        model, fresh = target
        model.cuda()
        call = torch.no_grad()(model)
    else:
        model, fresh, call = target.state["model"], target.inputs, target.step
    return Step(call, lambda: moved(fresh()), [*model.parameters(), *model.buffers()])


def moved(inputs: dict[str, Any]) -> dict[str, Any]:
    return tree_map(lambda each: each.cuda() if isinstance(each, torch.Tensor) else each, inputs)


def tensors_of(value: object, deep: int = 0) -> Values:
    """The tensors on the GPU in what a step takes or gives: containers, and objects such as caches."""
    return list(_tensors(value, deep, set()))


def _tensors(value: object, deep: int, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_cuda and value.layout is torch.strided:
            yield value
    elif deep < DEEPEST and id(value) not in seen:
        seen.add(id(value))
        for each in _parts(value):
            yield from _tensors(each, deep + 1, seen)


def _parts(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, torch.nn.Module) or callable(value):
        return []
    return list(getattr(value, "__dict__", {}).values())


def innermost(error: BaseException) -> BaseException:
    """What the step raised: leaving the capture raises an error of its own over it."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def place_of(error: BaseException) -> str:
    """The nearest line outside torch, by the name of its file without folders; a backward has none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(OURS_AND_TORCHS):
            return f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
    return ""


def words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0][:160]
