"""A tape of one region -> something that replays it: the tape itself on the emulated device, a CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from graphdoctor.device.observe.tape import Tape


class Replay(Protocol):
    """Runs a region again, on the memory that its tape keeps."""

    def __call__(self) -> None: ...


def replay_on_emulated_device(tape: Tape, prepare: Callable[[], None]) -> Replay:
    """The tape: running it again is what the emulated device takes for a graph."""
    return tape.replay


def replay_on_gpu(tape: Tape, prepare: Callable[[], None]) -> Replay:
    """The tape's operators, captured in a real graph.

    `prepare` gives the region's memory its contents: the warm-up runs on them, and changes them.
    Raises RuntimeError where CUDA refuses the capture.
    """
    side: Any = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        prepare()
        tape.replay()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        tape.replay()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay
