"""Writes a recorded iteration, or some of its operators, as a torch.fx graph."""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from graphdoctor.partition.hazards import Value, value_of
from graphdoctor.values.errors import CannotDoItHere
from graphdoctor.values.recording import Arg, Iteration, Op, Opaque, TensorUse

Path = tuple[int, ...]
_DEVICE = re.compile(r"(?:device\(type='(\w+)'(?:, index=(\d+))?\)|(cpu|cuda|meta)(?::(\d+))?)")
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)


@cache
def operator_named(name: str) -> Callable[..., Any]:
    """The overload "namespace.operator.overload"; a function that cannot run if there is none."""
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    try:
        found: Callable[..., Any] = getattr(
            getattr(getattr(torch.ops, namespace), packet), overload or "default"
        )
    except (AttributeError, RuntimeError):

        def missing(*args: object, **kwargs: object) -> object:
            raise CannotDoItHere(
                f"The graph calls the operator {name}, which is not registered in this process; "
                "import the library that defines it first."
            )

        return _named(name, missing)
    # The code of a torch.fx graph spells the overload out, and "from" cannot be spelt.
    return _named(name, found) if keyword.iskeyword(overload) else found


def _named(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    call.__name__ = call.__qualname__ = re.sub(r"\W", "_", name)
    return call


def bound(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with those that Python has no keyword syntax for ("from") made positional."""
    if not any(keyword.iskeyword(name) for name in kwargs):
        return args, kwargs
    positional, named = list(args), dict(kwargs)
    for argument in _schema_arguments(target)[len(args) :]:
        if argument.kwarg_only or not any(keyword.iskeyword(name) for name in named):
            break
        positional.append(named.pop(argument.name, argument.default_value))
    return tuple(positional), named


def _schema_arguments(target: Callable[..., Any]) -> list[Any]:
    return list(target._schema.arguments) if isinstance(target, torch._ops.OpOverload) else []


def result_paths(target: Callable[..., Any], op: Op) -> tuple[Path, ...]:
    """Where each recorded output tensor lies in what the operator returns; () is the result itself.

    Absent outputs (a gradient that was not asked for) and numbers are not recorded; where the
    schema leaves open which of several tensors is absent, the first ones are taken as present.
    """
    kinds = _return_kinds(target, op)
    if kinds == ["Tensor"]:
        return ((),) * min(1, len(op.outputs))
    lists = kinds.count("Tensor[]")
    if kinds == ["Tensor[]"]:
        return tuple((place,) for place in range(len(op.outputs)))
    each = (len(op.outputs) - kinds.count("Tensor")) // max(1, lists)
    return tuple(_places(kinds, each))[: len(op.outputs)]


def _places(kinds: list[str], each: int) -> Iterator[Path]:
    for place, kind in enumerate(kinds):
        if kind == "Tensor":
            yield (place,)
        elif kind == "Tensor[]":
            yield from ((place, position) for position in range(each))


def _return_kinds(target: Callable[..., Any], op: Op) -> list[str]:
    if not isinstance(target, torch._ops.OpOverload):
        return ["Tensor"] * len(op.outputs)
    kinds = [_kind(returned.type) for returned in target._schema.returns]
    mask = _output_mask(target, op)
    if mask is not None and kinds.count("Tensor") != len(op.outputs):
        kinds = ["Tensor" if wanted else "absent" for wanted in mask]
    return kinds


def _kind(returned: Any) -> str:
    text = str(returned)
    if text in ("Tensor", "Optional[Tensor]"):
        return "Tensor"
    return "Tensor[]" if text.startswith("List[") and "Tensor" in text else "number"


def _output_mask(target: Callable[..., Any], op: Op) -> tuple[bool, ...] | None:
    """Which gradients a backward operator computes, if it has an argument for that."""
    for argument, value in zip(_schema_arguments(target), op.args, strict=False):
        if argument.name == "output_mask" and isinstance(value, tuple):
            return tuple(bool(wanted) for wanted in value)
    return None


def restored(text: str) -> object:
    """A dtype, layout, memory format or device from its text; other texts stay what they are."""
    if text.startswith("torch."):
        constant = getattr(torch, text.removeprefix("torch."), None)
        return constant if isinstance(constant, _CONSTANTS) else text
    match = _DEVICE.fullmatch(text)
    if match is None:
        return text
    kind, index = match[1] or match[3], match[2] or match[4]
    return torch.device(kind) if index is None else torch.device(kind, int(index))


_MARKS = "profiler."  # names of spans for a profiler: they compute nothing and hold live handles


def to_fx(iteration: Iteration, ops: Sequence[Op] | None = None) -> fx.GraphModule:
    """The operators (all by default) as a graph of `call_function` nodes in recorded order.

    A node's meta has its "op" and "location"; a placeholder's meta has the tensor's "value" and its
    "external", which is None for what an operator outside the slice made. The graph returns, as a
    tuple, what the caller or operators outside the slice use. It writes to memory as recorded, and
    what reads that memory later depends on the write. Marks for a profiler are left out.
    """
    given = iteration.ops if ops is None else ops
    chosen = [op for op in given if not op.name.startswith(_MARKS)]
    builder = _Builder(iteration)
    builder.add_placeholders(chosen)
    for op in chosen:
        builder.add(op)
    builder.add_output(_later_uses(iteration, chosen))
    builder.graph.lint()
    return fx.GraphModule(torch.nn.Module(), builder.graph, class_name="RecordedGraph")


def after(value: object, write: object) -> object:
    """`value` as it is once `write`, which changed its memory, has run."""
    return value


def reinterpret(
    base: torch.Tensor, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    """The memory of `base` seen with another dtype; `offset` counts elements of that dtype."""
    view = torch.empty(0, dtype=dtype, device=base.device)
    return view.set_(base.untyped_storage(), offset, tuple(shape), tuple(stride))


def _later_uses(iteration: Iteration, chosen: Sequence[Op]) -> Iterator[TensorUse]:
    inside = {op.index for op in chosen}
    first = min(inside, default=0)
    for op in iteration.ops:
        if op.index > first and op.index not in inside:
            yield from op.inputs
    for leaf in iteration.outputs:
        if isinstance(leaf.value, TensorUse):
            yield leaf.value


class _Builder:
    """A graph under construction; it knows the node of each value, and each memory's last write."""

    def __init__(self, iteration: Iteration) -> None:
        self.graph = fx.Graph()
        self._externals = {external.storage: external for external in iteration.externals}
        self._makers = {use.storage: op.name for op in iteration.ops[::-1] for use in op.outputs}
        self._names: set[str] = set()
        self._holders: dict[Value, fx.Node] = {}
        self._seen: dict[int, tuple[TensorUse, fx.Node]] = {}  # the last value held of a storage
        self._writes: dict[int, fx.Node] = {}
        self._reflects: dict[fx.Node, fx.Node | None] = {}  # the last write that a holder is after

    def add_placeholders(self, ops: Sequence[Op]) -> None:
        """One placeholder for each storage that the operators use before any of them made it."""
        known: set[int] = set()
        for op in ops:
            for use in op.inputs:
                if use.storage not in known:
                    known.add(use.storage)
                    self._hold(use, self._placeholder(use))
            known.update(use.storage for use in op.outputs)

    def add(self, op: Op) -> None:
        target = operator_named(op.name)
        args, kwargs = bound(
            target,
            tuple(self._argument(arg) for arg in op.args),
            {name: self._argument(arg) for name, arg in op.kwargs},
        )
        node = self.graph.call_function(target, args, kwargs)
        node.meta.update(op=op, location=op.location)
        self._writes.update(dict.fromkeys(op.writes, node))
        for use, path in zip(op.outputs, result_paths(target, op), strict=False):
            result = node
            for place in path:
                result = self.graph.call_function(operator.getitem, (result, place))
                result.meta.update(op=op, location=op.location)
            self._hold(use, result)

    def add_output(self, uses: Iterator[TensorUse]) -> None:
        """Return those values that an operator of the graph, and not its caller, has made."""
        results = dict.fromkeys(self._read(use) for use in uses if self._is_result(use))
        self.graph.output(tuple(results))

    def _is_result(self, use: TensorUse) -> bool:
        holder = self._holders.get(value_of(use))
        if holder is None and use.storage in self._seen:
            holder = self._seen[use.storage][1]
        return holder is not None and holder.op != "placeholder"

    def _hold(self, use: TensorUse, node: fx.Node) -> None:
        self._holders[value_of(use)] = node
        self._seen[use.storage] = (use, node)
        self._reflects[node] = self._writes.get(use.storage)

    def _read(self, use: TensorUse) -> fx.Node:
        """The node of a value as it is now, after the last write to its memory."""
        node = self._holders.get(value_of(use)) or self._derived(use)
        write = self._writes.get(use.storage)
        if write is not None and self._reflects[node] is not write:
            node = self.graph.call_function(after, (node, write))
        self._hold(use, node)
        return node

    def _derived(self, use: TensorUse) -> fx.Node:
        """A view that no recorded operator made, from whatever is known of its memory."""
        if use.storage not in self._seen:  # the operator that made it returned it in an odd place
            first = next(node for node in self.graph.nodes if node.op != "placeholder")
            with self.graph.inserting_before(first):
                node = self._placeholder(use)
            self._reflects[node] = None
            return node
        seen, base = self._seen[use.storage]
        place = (use.shape, use.stride, use.offset)
        if seen.dtype == use.dtype:
            target = torch.ops.aten.as_strided.default
            node = self.graph.call_function(target, (base, *place))
        else:
            dtype = getattr(torch, use.dtype)
            node = self.graph.call_function(reinterpret, (base, dtype, *place))
        self._reflects[node] = self._reflects[base]
        return node

    def _placeholder(self, use: TensorUse) -> fx.Node:
        external = self._externals.get(use.storage)
        source = external.name if external else self._makers.get(use.storage, "value")
        plain = re.sub(r"\W+", "_", source).strip("_") or "value"
        plain = f"_{plain}" if plain[0].isdigit() or keyword.iskeyword(plain) else plain
        name, suffix = plain, 1
        while name in self._names:
            name, suffix = f"{plain}_{suffix}", suffix + 1
        self._names.add(name)
        node = self.graph.placeholder(name)
        node.meta.update(value=use, external=external)
        return node

    def _argument(self, arg: Arg) -> Any:
        if isinstance(arg, TensorUse):
            return self._read(arg)
        if isinstance(arg, Opaque):
            return restored(arg.text)
        if isinstance(arg, tuple):
            return [self._argument(each) for each in arg]
        return arg
