"""Time that `graphdoctor.capture` adds to each call: the guards, with nothing else in the way.

With a GPU, whole calls are timed beside the same copies, replay and clones made by hand, in turns:
this thread's time on the processor, in blocks short enough never to wait for the GPU; and the time
that goes by a call while many follow each other and are waited for at the end, which is what a caller
pays. Without a GPU the replay, the copies of inputs and the clones of outputs are stubs, so that what
is left is the Python of the guards on this processor.

    python benchmarks/speed/captured_call.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from models.captured import subjects
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import graphdoctor
from graphdoctor.captured.forward_graph import Traits
from graphdoctor.captured.module import CapturedModel, behind, module_of
from graphdoctor.captured.plan import CapturePlan
from graphdoctor.captured.replays import Replays
from graphdoctor.graphs.calls import form_of, signature
from graphdoctor.graphs.graphed_callable import GraphedCallable
from graphdoctor.graphs.guards import Guard, Modes, guard

BLOCKS = 60
CALLS = 50  # in a block; far below the 1024 launches that a stream queues
TRAINS, TRAIN_CALLS = 9, 200
ROUNDS = 3

Figures = dict[str, float]


def medians_us(
    *calls: Callable[[], object], settle: Callable[[], None] = lambda: None
) -> list[float]:
    """This thread's time on the processor for each, over blocks begun on an idle device."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(BLOCKS):
        for call, found in zip(calls, times, strict=True):
            settle()
            start = time.thread_time_ns()
            for _ in range(CALLS):
                call()
            found.append((time.thread_time_ns() - start) / CALLS / 1e3)
    settle()
    return list(map(statistics.median, times))


def trains_us(*calls: Callable[[], object], settle: Callable[[], None]) -> list[float]:
    """The time that goes by a call while they follow each other, waited for once at the end."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(TRAINS):
        for call, found in zip(calls, times, strict=True):
            settle()
            start = time.perf_counter_ns()
            for _ in range(TRAIN_CALLS):
                call()
            settle()
            found.append((time.perf_counter_ns() - start) / TRAIN_CALLS / 1e3)
    return list(map(statistics.median, times))


def stubbed(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[Any, Any]:
    """The model, captured as a graph that does nothing."""
    replays = Replays(model, context=_context(model, inputs))
    answer = torch.zeros(1)
    graph = SimpleNamespace(
        key=signature(inputs, {})[0],
        served=0,
        state=Guard({"model": model}),
        traits=Traits(repeats=True, launches=0),
        forward=GraphedCallable(SimpleNamespace(replay=lambda: None), (), lambda tensors: answer),
    )
    replays.add(graph)  # type: ignore[arg-type]
    return module_of(model, CapturedModel(model, CapturePlan("whole"), replays)), graph


class _Names(TorchDispatchMode):
    """The operators that a call runs, by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = [
            each for each in tree_leaves((args, kwargs, made)) if isinstance(each, torch.Tensor)
        ]
        uses = [SimpleNamespace(dtype=str(each.dtype).removeprefix("torch.")) for each in given]
        self.ops.append(SimpleNamespace(name=str(func), inputs=uses, outputs=()))
        return made


def _context(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Modes:
    """What `capture` would watch for these operators."""
    context = Modes()
    with _Names() as names:
        model(*inputs)
    context.watch(SimpleNamespace(captured=[names], host=()))  # type: ignore[arg-type]
    return context


def addresses(graph: Any) -> Callable[[], object]:
    """The part of the look at the model that no version of a dictionary can spare."""
    return lambda: list(map(torch.Tensor.data_ptr, graph.state.tensors))


def parts_us(inputs: tuple[torch.Tensor, ...], context: Modes) -> Figures:
    """What is asked before the launch, by itself: the form of the call, torch's switches, the stream."""
    known = form_of(inputs, {})
    assert known is not None
    form, modes, stream = medians_us(
        partial(known.check, *inputs), context.is_same, context.stream_number
    )
    return {"form_us": form, "modes_us": modes, "stream_us": stream}


def without_gpu(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Figures:
    """What the guards cost here."""
    fast, graph = stubbed(model, inputs)
    call, after, ptrs = medians_us(partial(fast, *inputs), graph.state.is_same, addresses(graph))
    assert not fast.fallbacks
    return {
        "before_us": call - after,
        "after_us": after,
        "addresses_us": ptrs,
        "added_us": call,
        **parts_us(inputs, _context(model, inputs)),
    }


def by_hand(graph: Any, inputs: tuple[torch.Tensor, ...]) -> object:
    """Copies of the inputs, a bare replay, and clones of the outputs."""
    forward = graph.forward
    forward.load(inputs)
    forward.replay()
    return forward.build(inputs)


def bare(graph: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    """As `by_hand`, but the outputs stay where they are."""
    graph.forward.load(inputs)
    graph.forward.replay()


def with_gpu(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Figures:
    """Whole calls beside the same work by hand."""
    fast = graphdoctor.capture(model, *inputs)
    (graph,) = behind(fast).replays.graphs
    settle = torch.cuda.synchronize
    hand, call = partial(by_hand, graph, inputs), partial(fast, *inputs)
    after, ptrs, lean = medians_us(
        graph.state.is_same, addresses(graph), partial(bare, graph, inputs), settle=settle
    )
    host_hand, host_call = medians_us(hand, call, settle=settle)
    train_hand, train_call = trains_us(hand, call, settle=settle)
    assert not fast.fallbacks, fast.fallbacks
    parts = parts_us(inputs, behind(fast).replays._context)
    fast.release()
    return {
        "bare_us": lean,
        "by_hand_us": host_hand,
        "call_us": host_call,
        "added_us": host_call - host_hand,
        "before_us": host_call - host_hand - after,
        "after_us": after,
        "addresses_us": ptrs,
        "in_a_row_by_hand_us": train_hand,
        "in_a_row_call_us": train_call,
        "in_a_row_added_us": train_call - train_hand,
        **parts,
    }


def measured() -> dict[str, Figures]:
    """Figures by model, of what this machine can do: of several rounds over all models, the middle one for each.

    A host's speed changes by the second, and a model's round takes less.
    """
    if torch.cuda.is_available():
        device, of_one = "cuda", with_gpu
    else:
        device, of_one = "cpu", without_gpu
        _stand_in_for_streams()
        setattr(guard, "is_on_cpu", lambda tensor: False)  # noqa: B010  (as if on the GPU)
    models = subjects(device)
    rounds = [{name: of_one(*models[name]) for name in models} for _ in range(ROUNDS)]
    by_cost = {name: sorted((one[name] for one in rounds), key=_added) for name in models}
    return {name: found[ROUNDS // 2] for name, found in by_cost.items()}


def _added(figures: Figures) -> float:
    return figures["added_us"]


def _stand_in_for_streams() -> None:
    """What a build for CUDA would ask a driver that is not there."""
    setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))  # noqa: B010
    setattr(torch.cuda, "current_device", lambda: 0)  # noqa: B010
    if hasattr(torch._C, "_cuda_getCurrentRawStream"):
        setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)  # noqa: B010


def machine() -> dict[str, object]:
    """What the figures are of."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.machine(),
        "gpu": gpu,
    }


def main() -> None:
    """Measure, print one line a figure, and write all of it as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        found = measured()
    print(machine())
    for figure in next(iter(found.values())):
        cells = "".join(f"{name:>18}{figures[figure]:8.1f}" for name, figures in found.items())
        print(f"{figure:22}{cells}")
    if args.json:
        text = json.dumps(
            {"machine": machine(), "calls": CALLS, "rounds": ROUNDS, "models": found}, indent=1
        )
        args.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
