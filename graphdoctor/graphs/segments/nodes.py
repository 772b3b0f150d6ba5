"""A torch.fx node as a recording has the operator, and why a CUDA graph cannot contain it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from graphdoctor.device.observe.operators import OperatorFacts, each_in, facts_of, tensors_of
from graphdoctor.device.observe.storages import arg_of
from graphdoctor.operators import fact_about, host_learns, load_table
from graphdoctor.partition.fx import operator_named
from graphdoctor.target.frames import is_machinery
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Op, TensorUse, tensors_in

DeviceOf = Callable[[torch.Tensor], str]
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_KNOWN = frozenset({"aten", "prims"})
_COPIES = frozenset({"_to_copy", "copy_", "copy", "_copy_from"})
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_LEARNED = {
    "value": "gives a value of the device to the host",
    "size": "makes a result whose size depends on values",
}
_UNSAFE = "is marked by torch as unsafe for CUDA graphs"


def device_of(tensor: torch.Tensor) -> str:
    """Where a tensor lies, as a recording says it: "cuda:0" or "cpu"."""
    device = tensor.device
    return f"cuda:{device.index or 0}" if device.type == "cuda" else str(device)


def op_of(node: fx.Node, where: DeviceOf = device_of) -> Op | None:
    """The operator that a node calls; None for a node that calls none.

    A node of `to_fx` has it; any other has its tensors in `meta["val"]`.
    """
    recorded = node.meta.get("op")
    if isinstance(recorded, Op):
        return recorded
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return None
    return _Reader(where).op(node, node.target)


class _Reader:
    """Numbers the storages of one node's tensors, so that views are known as views."""

    def __init__(self, where: DeviceOf) -> None:
        self._where = where
        self._numbers: dict[int, int] = {}

    def op(self, node: fx.Node, target: torch._ops.OpOverload) -> Op:
        facts = facts_of(target)
        given: Any = map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
        args = tuple(arg_of(value, self._use) for value in given[0])
        kwargs = tuple((name, arg_of(value, self._use)) for name, value in given[1].items())
        outputs = tuple(map(self._use, tensors_of(node.meta.get("val"))))
        uses = (*tensors_in((*args, *(value for _, value in kwargs))), *outputs)
        on_device = any(use.is_cuda for use in uses)
        changed = [each.meta.get("val") for each in written_nodes(node, facts)]
        return Op(
            index=0, name=facts.name, args=args, kwargs=kwargs, outputs=outputs,
            writes=tuple(self._use(tensor).storage for tensor in tensors_of(changed)),
            tags=facts.tags, phase="forward", module="",
            device="cuda:0" if on_device else "cpu", location=location_of(node),
        )  # fmt: skip

    def _use(self, tensor: torch.Tensor) -> TensorUse:
        memory = memory_of_value(tensor)
        return TensorUse(
            storage=self._numbers.setdefault(memory, len(self._numbers)),
            shape=tuple(map(_size, tensor.shape)),
            stride=_strides(tensor),
            offset=0,
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=self._where(tensor),
            itemsize=tensor.element_size(),
        )


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    try:
        return tuple(map(_size, tensor.stride()))
    except (NotImplementedError, RuntimeError):  # a sparse tensor has none
        return ()


def _size(size: Any) -> int:
    return size if isinstance(size, int) else -1  # -1: known while it runs only


def memory_of_value(tensor: torch.Tensor) -> int:
    """Equal for the values of two nodes that share memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a sparse tensor has no storage of its own
        return id(tensor)


def written_nodes(node: fx.Node, facts: OperatorFacts) -> Iterator[fx.Node]:
    """The nodes whose memory a call writes into."""
    if facts.writes_if is not None and not node.args[facts.writes_if]:
        return
    for position in facts.written_args:
        if position < len(node.args):
            yield from each_in(node.args[position], fx.Node)
    for name in facts.written_kwargs:
        yield from each_in(node.kwargs.get(name), fx.Node)


def location_of(node: fx.Node) -> Location | None:
    """The user's line that a node comes from, as the one who traced it noted."""
    recorded = node.meta.get("location")
    if isinstance(recorded, Location):
        return recorded
    found = None
    for match in _FRAME.finditer(node.meta.get("stack_trace") or node.stack_trace or ""):
        if not is_machinery(match["file"]):
            found = Location(match["file"], int(match["line"]), match["function"])
    return found


def is_free(node: fx.Node) -> bool:
    """Whether it takes something out of what another node made: no operator at all."""
    return node.target is operator.getitem


def why_unsafe(node: fx.Node, where: DeviceOf = device_of) -> str:
    """What stands in the way of capturing this node, to follow the operator's name; "" if nothing does."""
    if any(isinstance(source.meta.get("val"), _SYMBOLS) for source in node.all_input_nodes):
        return "takes a number from the host that may change"
    op = op_of(node, where)
    if op is None:
        if is_free(node) or not any(True for _ in _tensors_around(node)):
            return ""
        return "is not an operator that can be looked up"
    return _why(op)


def _tensors_around(node: fx.Node) -> Iterator[torch.Tensor]:
    yield from tensors_of(node.meta.get("val"))
    for source in node.all_input_nodes:
        yield from tensors_of(source.meta.get("val"))


def ends_graph(op: Op) -> str:
    """Why Dynamo cannot trace past an operator, to follow its name; "" where it can."""
    fact = fact_about(op, "reads-value", "sizes-result")
    if fact is not None:
        return fact.why
    return _LEARNED.get(host_learns(op), "") if any(use.is_cuda for use in op.inputs) else ""


def _why(op: Op) -> str:
    uses = (*op.inputs, *op.outputs)
    if uses and not any(use.is_cuda for use in uses):
        return "runs on the CPU"
    if any(not use.is_cuda for use in uses):
        return _why_mixed(op)
    if len({use.device for use in uses}) > 1:
        return "takes tensors of several devices"
    fact = fact_about(op)
    if fact is not None:
        return fact.why or "cannot be captured"
    if learned := host_learns(op):
        return _LEARNED[learned]
    if op.base_name not in load_table().hazards and "cudagraph_unsafe" in op.tags:
        return _UNSAFE
    if op.name.split(".", 1)[0] not in _KNOWN:
        return "is not one of torch's operators: what it does inside is unknown"
    if _is_attention_with_dropout(op):
        return "keeps its random seed on the host in eager and on the device in a graph"
    if any(-1 in use.shape for use in uses):
        return "has a size that is only known while it runs"
    return ""


def _is_attention_with_dropout(op: Op) -> bool:
    """Its backward reads the seed where eager left it, or where a graph did: never the other's.

    A forward in a graph and a backward outside of it read an address of the device on the host.
    """
    if "attention" not in op.base_name:
        return False
    schema = getattr(operator_named(op.name), "_schema", None)  # None: this torch lacks it
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == "dropout_p":
            given = dict(op.kwargs).get("dropout_p", argument.default_value)
            return bool(op.args[place] if place < len(op.args) else given)
    return False


def _why_mixed(op: Op) -> str:
    if op.base_name in _COPIES:
        return "copies between the host and the device"
    fact = fact_about(op)
    if fact is not None and fact.why:
        return fact.why
    if all(use.is_cuda or not use.shape for use in op.inputs) and op.outputs:
        return "takes a number from the host, which a graph would freeze"
    return "takes tensors of the host and of the device"
