"""One graph of ATen operators -> a callable that runs it, its safe parts as CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from graphdoctor.graphs.capture import Pool
from graphdoctor.graphs.segments.captured import CapturedPart, written_arguments
from graphdoctor.graphs.segments.memory import (
    Copier,
    Lent,
    Results,
    can_lend,
    memory_of,
    strangers,
)
from graphdoctor.graphs.segments.parts import GraphPlan
from graphdoctor.graphs.segments.split import Split, modules_of
from graphdoctor.graphs.segments.taken import Taken, address_of

EAGER_CALLS = 1  # before the capture: many a graph is used once
CAPTURES = 4  # of one graph whose parameters move, before it stays eager
MISSES = 2  # calls in a row that a capture does not fit, before it is made anew


@dataclass(frozen=True, slots=True)
class Shared:
    """What the graphs of one model have in common: a stream to capture on, and each other's memory."""

    side: Any
    lent: list[Lent]
    guarded: bool  # somebody else, such as Dynamo, sees to it that shapes and values fit
    fixed: set[int] = field(default_factory=set)  # memory of parameters and buffers

    def is_lent(self, tensor: torch.Tensor) -> bool:
        return any(tensor in lent for lent in self.lent)


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of a graph's arguments and results beforehand.

    The first `owned` results belong to the caller, and all where it is None; the others are kept by
    autograd. `static` arguments, by place, are state that stays where it is.
    """

    owned: int | None = None
    static: frozenset[int] = frozenset()


_UNTOLD = Told()


class SegmentedGraph:
    """Runs a graph on the arguments it is called with, as the graph itself would.

    Results that the caller owns are copies; the rest, which autograd keeps until the backward pass,
    lie in the graph's own memory. Where those are still in use, where an argument is of another
    shape or a parameter lies elsewhere than when the graph was captured, the call runs eagerly. It
    is then captured anew, if that stays so, a few times.
    """

    def __init__(
        self, graph_module: fx.GraphModule, parts: Split, shared: Shared, told: Told = _UNTOLD
    ) -> None:
        self.plan: GraphPlan = parts.plan
        self._eager = graph_module
        self._shared = shared
        self._owned = told.owned if can_lend() else None
        self._static = told.static
        self._whole, self._names = modules_of(graph_module, parts)
        self._plain = {name: getattr(self._whole, name) for name in self._names}
        self._written = frozenset(written_arguments(graph_module.graph))
        self._of_any_size = frozenset(_of_any_size(graph_module.graph))
        self._last: list[int] = []  # where the arguments of the call before lay
        self._moving: set[int] = set()
        self._calls = self._misses = self._captures = 0
        self._taken: Taken | None = None
        self._lent = Lent()
        self._results = Results({}, (), (), None)
        self.replays = 0

    @property
    def captured_parts(self) -> list[CapturedPart]:
        return [part for part in self._whole.children() if isinstance(part, CapturedPart)]

    def __call__(self, *args: Any) -> Any:
        with torch.no_grad():
            return self._call(list(args))

    def release(self) -> None:
        """Give graphs and memory back; calls run eagerly from then on."""
        self._drop()
        self._captures = CAPTURES

    def _call(self, args: list[Any]) -> Any:
        self._calls += 1
        if self._taken is None:
            if self._calls <= EAGER_CALLS or self._captures >= CAPTURES or not self._any_captured:
                self._last = [address_of(arg) for arg in args]
                return self._eager(*args)
            try:
                self._taken = self._take(args)
                return self._run(args, first=True)
            except BaseException:
                self._drop()  # half a capture knows nothing of its results
                raise
        if not self._taken.fits(args, guarded=self._shared.guarded):
            return self._missed(args)
        self._misses = 0
        if self._lent.is_held():
            return self._eager(*args)
        return self._run(args, first=False)

    @property
    def _any_captured(self) -> bool:
        return any(part.captured for part in self.plan.parts)

    def _missed(self, args: list[Any]) -> Any:
        """Run eagerly; a miss that stays makes room for another capture."""
        assert self._taken is not None
        self._misses += 1
        if self._misses >= MISSES:
            still = [address_of(arg) for arg in args]
            for place in self._taken.moved(args):
                if still[place] != self._last[place] and not _is_parameter(args[place]):
                    self._moving.add(place)
            self._drop()
        self._last = [address_of(arg) for arg in args]
        return self._eager(*args)

    def _drop(self) -> None:
        for part in self.captured_parts:
            part.release()
        self._taken = None
        self._misses = 0
        if self._lent in self._shared.lent:
            self._shared.lent.remove(self._lent)
        self._lent = Lent()

    def _take(self, args: list[Any]) -> Taken:
        """Decide which arguments are read where they lie, and make room for the others."""
        self._captures += 1
        fixed = [self._is_fixed(place, arg) for place, arg in enumerate(args)]
        taken = Taken(args, fixed, self._written, as_they_come=self._of_any_size)
        pool = Pool()
        known = taken.fixed_memory | set(map(memory_of, taken.copies))

        def is_fixed(tensor: torch.Tensor) -> bool:
            return memory_of(tensor) in known or self._is_result(tensor)

        for place, name in enumerate(self._names):
            if self.plan.parts[place].captured:
                before = getattr(self._whole, name)
                part = CapturedPart(self._plain[name], pool, self._shared.side, is_fixed)
                part.refused = getattr(before, "refused", "")
                setattr(self._whole, name, part)
        return taken

    def _is_fixed(self, place: int, arg: object) -> bool:
        if not isinstance(arg, torch.Tensor) or place in self._moving:
            return False
        if not arg.is_cuda:
            return False
        if _is_parameter(arg) or place in self._static:
            self._shared.fixed.add(memory_of(arg))
            return True
        # A backward graph gets views of parameters, and what its forward graph lends.
        return memory_of(arg) in self._shared.fixed or self._shared.is_lent(arg)

    def _is_result(self, tensor: torch.Tensor) -> bool:
        memory = memory_of(tensor)
        return any(memory_of(own) == memory for part in self.captured_parts for own in part.own)

    def _run(self, args: list[Any], *, first: bool) -> Any:
        taken = self._taken
        assert taken is not None
        placed = taken.placed(args) if first else taken.load(args)
        results = self._whole(*placed)
        self.replays += 1
        taken.write_back(args, placed)
        single = not isinstance(results, (tuple, list))
        listed: list[Any] = [results] if single else list(results)
        if first:
            own = self._keep(taken)
            self._results = self._sorted(listed, placed, own)
            lent = [listed[place] for place in self._results.lent]
            self._lent.watch(lent, but=strangers(listed, own))
        self._results.hand_out(listed, args)
        return listed[0] if single else type(results)(listed)

    def _keep(self, taken: Taken) -> list[torch.Tensor]:
        """Note which memory replays overwrite: what is copied in, and what the parts fill."""
        own = [*taken.copies, *(tensor for part in self.captured_parts for tensor in part.own)]
        own = [tensor for tensor in own if memory_of(tensor) not in taken.fixed_memory]
        self._lent.add(own)
        self._shared.lent.append(self._lent)
        return own

    def _sorted(
        self, results: list[Any], placed: list[Any], own: Sequence[torch.Tensor]
    ) -> Results:
        """What is done with each result; the same in every call."""
        given = {
            id(arg): place for place, arg in enumerate(placed) if isinstance(arg, torch.Tensor)
        }
        owned = len(results) if self._owned is None else self._owned
        tensors = {p: r for p, r in enumerate(results) if isinstance(r, torch.Tensor)}
        back = {p: given[id(r)] for p, r in tensors.items() if id(r) in given}
        ours = [p for p, r in tensors.items() if p not in back and r in self._lent]
        copied = [place for place in ours if place < owned]
        known = set(map(id, own))
        is_same = all(id(tensors[place]) in known for place in copied)
        copier = Copier([tensors[place] for place in copied]) if is_same else None
        return Results(back, copied, [place for place in ours if place >= owned], copier)


def _of_any_size(graph: fx.Graph) -> Iterator[int]:
    """The places of tensors that have another shape in another call; no captured part reads them."""
    for place, node in enumerate(node for node in graph.nodes if node.op == "placeholder"):
        value = node.meta.get("val")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        if not all(isinstance(size, int) for size in shape):
            yield place


def _is_parameter(arg: object) -> bool:
    return isinstance(arg, torch.nn.Parameter)
