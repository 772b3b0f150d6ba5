"""A CUDA graph that is called like a function: inputs are copied in, the graph is replayed, outputs are handed out."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from graphdoctor.target.state.clone import copy_values, is_overlapping

Tensors = list[torch.Tensor] | tuple[torch.Tensor, ...]
Load = Callable[[Tensors], None]
Build = Callable[[Sequence[torch.Tensor]], Any]


class GraphedCallable:
    """A CUDA graph with the `static` tensors that it reads.

    `load` copies a call's tensors into those, `replay` runs the graph, and `build` returns the outputs for the call's
    tensors: clones, or views of the graph's memory. A call does all three. `release` gives the memory back.
    A call whose tensors are on the CPU needs a `load` of its own.
    """

    def __init__(self, graph: Any, static: Tensors, build: Build, load: Load | None = None) -> None:
        self.load = load or copy_into(static)
        self.replay: Callable[[], None] = graph.replay
        self.build = build
        self._graph = graph

    def __call__(self, tensors: Tensors) -> Any:
        """The outputs for these tensors, which have the shapes and dtypes of the static ones."""
        self.load(tensors)
        self.replay()
        return self.build(tensors)

    def release(self) -> None:
        """The graph cannot be called any more."""
        self._graph.reset()
        self.load = self.build = _released  # and so is what they hold


def _released(given: Sequence[torch.Tensor]) -> Any:
    raise RuntimeError("the graph was released")


def copy_into(
    static: Sequence[torch.Tensor], on_host: Sequence[int] = (), *, lends: bool = False
) -> Load:
    """A function that copies values into these tensors, in as few kernels as torch can.

    How is decided once: a replay has no time for it. Values for the places `on_host` are on the CPU, and are copied
    to the GPU without waiting for it. `lends`: the caller does not write to a pinned tensor that it gave before the
    copy has ended, so no other copy of its values is made.
    """
    static = [tensor.detach() for tensor in static]
    if not static:
        return lambda fresh: None
    if any(map(is_overlapping, static)):

        def one_by_one(fresh: Tensors) -> None:
            for into, values in zip(static, fresh, strict=True):
                copy_values(into, values)

        return one_by_one
    by_dtype: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(static):
        if place not in on_host:
            by_dtype.setdefault(tensor.dtype, []).append(place)
    copies = [_copier(static, places) for places in by_dtype.values()]
    if on_host:
        copies.append(_FromHost({place: static[place] for place in on_host}, lends=lends))
    if len(copies) == 1:
        return copies[0]

    def each_kind(fresh: Tensors) -> None:
        for copy in copies:
            copy(fresh)

    return each_kind


def _copier(static: list[torch.Tensor], places: list[int]) -> Load:
    """Copies those of one dtype: one launch, where several dtypes together would take one each."""
    if len(places) == len(static) > 1:
        return partial(torch._foreach_copy_, static)
    into, pick = [static[place] for place in places], operator.itemgetter(*places)
    if len(places) == 1:
        copy = into[0].copy_

        def only(fresh: Tensors) -> None:
            copy(pick(fresh))

        return only
    return lambda fresh: torch._foreach_copy_(into, pick(fresh))


class _FromHost:
    """Copies values of the CPU through pinned memory, and so without waiting for the GPU.

    There are two buffers for each tensor, which take turns. One is written to again after the copy from it has
    ended: the host can be two calls ahead of the GPU, and memory does not grow.
    """

    def __init__(self, static: Mapping[int, torch.Tensor], *, lends: bool) -> None:
        self._static, self._lends = static, lends
        self._turns = itertools.cycle([_Turn(), _Turn()])

    def __call__(self, fresh: Tensors) -> None:
        turn = next(self._turns)
        turn.copied.synchronize()  # returns at once if nothing was recorded
        for place, into in self._static.items():
            values = fresh[place]
            if not self._lends or not values.is_pinned():
                values = turn.buffer(place, into).copy_(values)
            into.copy_(values, non_blocking=True)
        turn.copied.record()


class _Turn:
    def __init__(self) -> None:
        self.copied = torch.cuda.Event()
        self._buffers: dict[int, torch.Tensor] = {}

    def buffer(self, place: int, like: torch.Tensor) -> torch.Tensor:
        if place not in self._buffers:
            self._buffers[place] = torch.empty_like(like, device="cpu", pin_memory=True)
        return self._buffers[place]
