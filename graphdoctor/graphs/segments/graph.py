"""A callable that runs one graph of ATen operators, with its safe parts as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from graphdoctor.device.observe.operators import facts_of
from graphdoctor.graphs.capture import Pool, record_graph
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.generator import generator_state, set_generator_state
from graphdoctor.graphs.graphed_callable import GraphedCallable, copy_into
from graphdoctor.graphs.segments.split import (
    GraphPlan,
    Split,
    memory_of_value,
    modules_of,
    written_nodes,
)
from graphdoctor.graphs.tensor_layouts import TensorLayouts, are_at
from graphdoctor.target import Inputs
from graphdoctor.target.state.clone import clone_inputs, copy_values


def clones(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors on memory of their own; those that share memory share it in the clones too."""
    made = clone_inputs(Inputs(args=tuple(tensors))).args
    return [tensor for tensor in made if isinstance(tensor, torch.Tensor)]


def copy_all(into: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Fill tensors with others' values."""
    for one, other in zip(into, values, strict=True):
        copy_values(one, other)


class Copier:
    """Copies the same tensors again and again, in as few kernels as torch can."""

    def __init__(self, own: Sequence[torch.Tensor]) -> None:
        self._own = list(own)
        memories = set(map(memory_of, own))
        # Without gaps and overlaps, `empty_like` has the same strides.
        self._is_plain = len(memories) == len(own) and all(
            each.numel() > 0 and torch.empty_like(each).stride() == each.stride() for each in own
        )

    def taken(self) -> list[torch.Tensor]:
        """The tensors' values in new memory, of the same strides, shared where the tensors share it."""
        if not self._is_plain:
            return clones(self._own)
        made = [torch.empty_like(tensor) for tensor in self._own]
        if made:
            torch._foreach_copy_(made, self._own)
        return made


def memory_of(tensor: torch.Tensor) -> int:
    """Equal for tensors of one storage."""
    return int(tensor.untyped_storage()._cdata)


class Lent:
    """Memory that a graph's results lie in, some of it handed out without a copy, for autograd to keep.

    A replay overwrites it, which is right only when nobody holds the results of the last one any
    more. `is_held` asks the storages how many tensors look into them.
    """

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._own: dict[int, int] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return memory_of(tensor) in self._storages

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._storages.setdefault(storage._cdata, storage)

    def watch(self, handed_out: Sequence[torch.Tensor], *, but: Iterable[torch.Tensor]) -> None:
        """Take down how many hold the memory of these now, without the tensors that will be gone."""
        self._own = {memory_of(tensor): _users(memory_of(tensor)) for tensor in handed_out}
        for key in map(memory_of, but):
            if key in self._own:
                self._own[key] -= 1

    def is_held(self) -> bool:
        return any(_users(key) > own for key, own in self._own.items())


def _users(key: int) -> int:
    count: Any = torch._C._storage_Use_Count(key)
    return int(count)


@dataclass(frozen=True, slots=True)
class Results:
    """What a call does with each result, by its place among them.

    `back` are arguments, by their place among those; `copied` are the caller's to keep; `lent` stay
    where they are, and `Lent` learns who holds them. All others are nobody's but the caller's.
    `copier` has the copied ones where they are the same tensors in every call.
    """

    back: Mapping[int, int]
    copied: Sequence[int]
    lent: Sequence[int]
    copier: Copier | None

    def hand_out(self, results: list[Any], args: Sequence[Any]) -> None:
        for place, given in self.back.items():
            results[place] = args[given]
        for place in self.lent:
            results[place] = results[place].detach()  # its storage then counts who holds it
        copier = self.copier or Copier([results[place] for place in self.copied])
        copies = copier.taken()
        for place, copy in zip(self.copied, copies, strict=True):
            results[place] = copy


def strangers(results: Sequence[Any], own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors among the results that are not the graph's own, such as views that it made anew."""
    known = set(map(id, own))
    tensors = {id(result): result for result in results if isinstance(result, torch.Tensor)}
    return [tensor for key, tensor in tensors.items() if key not in known]


_address = torch.Tensor.data_ptr


class Taken:
    """The arguments that a capture was made with: some fixed where they lie, the others copied in.

    Only the copies are held: memory that is not the graph's own must not outlive its owner for it.
    What is `as_they_come`, or lies on the host, is read by eager parts alone.
    """

    def __init__(
        self,
        args: list[Any],
        fixed: list[bool],
        written: frozenset[int],
        *,
        as_they_come: frozenset[int] = frozenset(),
    ) -> None:
        on_device = [
            place
            for place, arg in enumerate(args)
            if isinstance(arg, torch.Tensor) and arg.is_cuda and place not in as_they_come
        ]
        self._kept = [place for place in on_device if fixed[place]]
        kept = [args[place] for place in self._kept]
        self._addresses: list[int | None] = list(map(_address, kept))
        self._layouts = TensorLayouts(kept)
        self._every = list(range(len(kept)))
        self.fixed_memory = frozenset(map(memory_of, kept))
        self._copied = [place for place in on_device if not fixed[place]]
        self._back = [place for place in self._copied if place in written]
        self._makes = [_make(arg) for arg in args]
        self.copies = clones([args[place] for place in self._copied])
        self._fill = copy_into(self.copies)

    def fits(self, args: list[Any], *, guarded: bool) -> bool:
        """Whether shapes and values are those of the capture, and what is fixed lies where it lay."""
        if not guarded:
            if len(args) != len(self._makes):
                return False
            if any(_make(arg) != make for arg, make in zip(args, self._makes, strict=True)):
                return False
        # A step that trains is handed every parameter: hundreds are looked at in each call. Up to torch 2.9
        # Dynamo does not notice `weight.data = weight.data.t()`, nor `weight.data[:2]`, and any may be told
        # to leave guards out.
        kept = [args[place] for place in self._kept]
        return are_at(kept, self._addresses, self._every) and self._layouts.are_those_of(kept)

    def moved(self, args: list[Any]) -> list[int]:
        pairs = zip(self._kept, self._addresses, strict=True)
        return [place for place, address in pairs if address_of(args[place]) != address]

    def load(self, args: list[Any]) -> list[Any]:
        """The arguments to run on, with the new values in the graph's own."""
        self._fill([args[place] for place in self._copied])
        return self.placed(args)

    def placed(self, args: list[Any]) -> list[Any]:
        placed = list(args)
        for place, copy in zip(self._copied, self.copies, strict=True):
            placed[place] = copy
        return placed

    def write_back(self, args: list[Any], placed: list[Any]) -> None:
        copy_all([args[place] for place in self._back], [placed[place] for place in self._back])


def address_of(arg: object) -> int:
    return arg.data_ptr() if isinstance(arg, torch.Tensor) else 0


def _make(arg: Any) -> object:
    """What may not change: of a tensor all but its values, of anything else the value."""
    if isinstance(arg, torch.Tensor):
        return arg.shape, arg.dtype, arg.device, arg.stride()
    return arg


WARM_UPS = 3  # as torch asks for before a capture


class CapturedPart(torch.nn.Module):
    """Stands for a part in the split graph, and returns what the part returns, in memory of its own.

    `is_fixed` says of an argument that it lies where it is in every call: it is read there, and
    every other one is copied to where the graph reads. `refused` is why the part runs eagerly
    after all, in words, or "".
    """

    part: fx.GraphModule

    def __init__(
        self, part: fx.GraphModule, pool: Pool, side: Any, is_fixed: Callable[[torch.Tensor], bool]
    ) -> None:
        super().__init__()
        # Not registered as submodules: whoever walks the modules has no business in here.
        object.__setattr__(self, "part", part)
        self._pool, self._side, self._is_fixed = pool, side, is_fixed
        self._written = frozenset(written_arguments(part.graph))
        self._graphed: GraphedCallable | None = None
        self._copied: tuple[int, ...] = ()
        self._copies: list[torch.Tensor] = []
        self._outputs: Any = None
        self.refused = ""

    @property
    def own(self) -> list[torch.Tensor]:
        """The tensors that replays fill: copies of arguments, and results."""
        results = self._outputs if isinstance(self._outputs, (tuple, list)) else [self._outputs]
        return [tensor for tensor in (*self._copies, *results) if isinstance(tensor, torch.Tensor)]

    @property
    def is_captured(self) -> bool:
        return self._graphed is not None

    def forward(self, *args: Any) -> Any:
        graphed = self._graphed
        if graphed is None:
            graphed = self._graphed = None if self.refused else self._capture(args)
            if graphed is None:
                return self.part(*args)
            graphed.replay()  # on these arguments, which were copied for the capture
        else:
            graphed([args[place] for place in self._copied])
        for place, copy in zip(self._copied, self._copies, strict=True):
            if place in self._written:
                args[place].copy_(copy)
        return self._outputs

    def release(self) -> None:
        """Give the graph and its memory back; the next call captures anew."""
        if self._graphed is not None:
            self._graphed.release()
        self._graphed = self._outputs = None
        self._copies, self._copied = [], ()

    def _capture(self, args: tuple[Any, ...]) -> GraphedCallable | None:
        """Capture on these arguments; afterwards state and random numbers are as before."""
        tensors = [place for place, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        copied = tuple(place for place in tensors if not self._is_fixed(args[place]))
        copies, static = clones([args[place] for place in copied]), list(args)
        for place, copy in zip(copied, copies, strict=True):
            static[place] = copy
        made = record_graph(
            lambda: self.part(*static),
            self._side,
            pool=self._pool,
            warm_up=lambda: self._warm_up(static),
        )
        if isinstance(made, Refusal):
            self.refused = made.reason
            return None
        self._outputs, self._copied, self._copies = made.result, copied, copies
        return GraphedCallable(made.graph, copies, lambda given: self._outputs)

    def _warm_up(self, static: list[Any]) -> None:
        """Let lazy initialisation happen, and undo what it writes."""
        written = [static[place] for place in self._written]
        tensors = [tensor for tensor in written if isinstance(tensor, torch.Tensor)]
        before, drawn = clones(tensors), generator_state()
        try:
            for _ in range(WARM_UPS):
                self.part(*static)
        finally:
            copy_all(tensors, before)
            set_generator_state(drawn)


def written_arguments(graph: fx.Graph) -> Iterator[int]:
    """The positions of the arguments that a graph writes into, itself or through a view."""
    written = set()
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            for into in written_nodes(node, facts_of(node.target)):
                value = into.meta.get("val")
                written.add(memory_of_value(value) if isinstance(value, torch.Tensor) else into)
    for position, node in enumerate(node for node in graph.nodes if node.op == "placeholder"):
        value = node.meta.get("val")
        key = memory_of_value(value) if isinstance(value, torch.Tensor) else node
        if key in written:
            yield position


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
        # None where this torch does not say how many hold a storage.
        self._owned = told.owned if hasattr(torch._C, "_storage_Use_Count") else None
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
            may_capture = self._calls > EAGER_CALLS and self._captures < CAPTURES
            if not may_capture or not any(part.captured for part in self.plan.parts):
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
            # Note which memory replays overwrite: what is copied in, and what the parts fill.
            own = [*taken.copies, *(tensor for part in self.captured_parts for tensor in part.own)]
            own = [tensor for tensor in own if memory_of(tensor) not in taken.fixed_memory]
            self._lent.add(own)
            self._shared.lent.append(self._lent)
            self._results = self._sorted(listed, placed, own)
            lent = [listed[place] for place in self._results.lent]
            self._lent.watch(lent, but=strangers(listed, own))
        self._results.hand_out(listed, args)
        return listed[0] if single else type(results)(listed)

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
