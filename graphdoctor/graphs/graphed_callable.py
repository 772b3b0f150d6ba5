"""A CUDA graph that is called like a function: inputs are copied in, the graph is replayed, outputs are handed out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
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
    """

    def __init__(self, graph: Any, static: Tensors, build: Build) -> None:
        self.load = copy_into(static)
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


def copy_into(static: Sequence[torch.Tensor]) -> Load:
    """A function that copies values into these tensors, in as few kernels as torch can.

    How is decided once: a replay has no time for it.
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
        by_dtype.setdefault(tensor.dtype, []).append(place)
    copies = [_copier(static, places) for places in by_dtype.values()]
    if len(copies) == 1:
        return copies[0]

    def each_dtype(fresh: Tensors) -> None:
        for copy in copies:
            copy(fresh)

    return each_dtype


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
