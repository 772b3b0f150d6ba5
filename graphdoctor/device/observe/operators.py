"""What an operator's schema says of it, read once, and a call of it as observers see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch._ops import HigherOrderOperator

from graphdoctor.device.observe.storages import StorageInfo
from graphdoctor.values.host_events import HostEvent


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """An operator's name, tags and which of its arguments it writes."""

    name: str
    base_name: str
    tags: tuple[str, ...]
    written_args: tuple[int, ...]
    written_kwargs: tuple[str, ...]
    writes_if: int | None  # the position of the flag that its writing depends on
    aliases: bool  # some output may alias an input, as the schema says
    is_random: bool
    makes_garbage: bool  # its result has no defined values: empty()
    is_aten: bool
    is_composite: bool  # made of others, that come instead of it, but for inference tensors
    is_collective: bool  # it runs on every rank of a group, which has to be waited for
    is_marker: bool  # record_function's: no work, only a name in a profile
    is_higher_order: bool  # it is given functions, and runs them


# By identity: an operator computes its hash in Python. Operators live as long as the process.
_KNOWN: dict[int, tuple[Any, OperatorFacts]] = {}


def facts_of(func: Any) -> OperatorFacts:
    """Facts about an OpOverload (a higher-order operator has no schema and writes nothing)."""
    known = _KNOWN.get(id(func))
    if known is None:
        known = _KNOWN[id(func)] = (func, _read_facts(func))
    return known[1]


def _read_facts(func: Any) -> OperatorFacts:
    name = str(func)
    base_name = name.split(".")[1] if "." in name else name
    schema = getattr(func, "_schema", None)
    arguments = schema.arguments if schema is not None else ()
    written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    positions = {a.name: i for i, a in enumerate(arguments)}
    tags = tuple(sorted(str(tag).removeprefix("Tag.") for tag in getattr(func, "tags", ())))
    return OperatorFacts(
        name=name,
        base_name=base_name,
        tags=tuple(tag.rpartition(".")[2] for tag in tags),
        written_args=(
            _RUNNING_STATISTICS
            if base_name in _BATCH_NORMS
            else (positions["dropout_state"],)
            if base_name in RECURRENT
            else (0,)
            if name.startswith("c10d.") and base_name not in _WRITE_NOTHING
            else tuple(positions[a.name] for a in written if not a.kwarg_only)
        ),
        written_kwargs=tuple(a.name for a in written),
        writes_if=(
            positions.get("train") if base_name in RECURRENT else _BATCH_NORMS.get(base_name)
        ),
        aliases=any(r.alias_info is not None for r in (schema.returns if schema else ())),
        is_random="nondeterministic_seeded" in " ".join(tags),
        makes_garbage=base_name in _GARBAGE,
        is_aten=name.startswith("aten."),
        is_composite=_is_composite(func),
        is_collective=name.startswith(COLLECTIVES),
        is_marker=name.startswith("profiler."),
        is_higher_order=isinstance(func, HigherOrderOperator),
    )


def _is_composite(func: Any) -> bool:
    """autograd calls its parts; torch.inference_mode() passes autograd by, and hands on the whole."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim":
        return False  # TorchScript's own know no dispatcher
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("CompositeImplicitAutograd", "CPU", "CUDA")
    composite, *own = (has_kernel(func.name(), key) for key in keys)
    return composite and not any(own)


def is_whole_for_nested(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a composite operator has a kernel of its own for the nested tensors that it is called with."""
    if not any(tensor.is_nested for tensor in tensors_of(args)):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "NestedTensorCPU")


def parts_in_order(func: Any) -> Callable[..., Any]:
    """Runs a composite operator as autograd would; torch's own `decompose` may take another way."""
    return partial(func._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)


# They update the running statistics, and their schemas do not say so. Source: ATen's
# native_functions.yaml, and batch_norm in Normalization.cpp and Normalization.cu.
_RUNNING_STATISTICS = (3, 4)
_TRAINING = 5
COLLECTIVES = ("c10d.", "_c10d_functional.", "_c10d_functional_autograd.")
# The others write their first argument, and their schemas do not say so.
# Source: torch/csrc/distributed/c10d/Ops.cpp.
_WRITE_NOTHING = frozenset({"send", "barrier", "monitored_barrier_"})
_BATCH_NORMS: dict[str, int | None] = {
    "native_batch_norm": _TRAINING,
    "cudnn_batch_norm": _TRAINING,
    "miopen_batch_norm": _TRAINING,
    "batch_norm_gather_stats": None,
    "batch_norm_gather_stats_with_counts": None,
}
# They advance the random state of their dropout, and their schemas do not say so. It is there only if one has
# dropout. Source: aten/src/ATen/native/cudnn/RNN.cpp.
RECURRENT = frozenset({"_cudnn_rnn", "miopen_rnn"})
_GARBAGE = frozenset(
    {
        "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    }
)  # fmt: skip


def written_tensors(
    facts: OperatorFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """The tensors that a call writes through its arguments."""
    if facts.writes_if is not None and not args[facts.writes_if]:
        return
    for position in facts.written_args:
        if position < len(args):
            yield from tensors_of(args[position])
    if kwargs:
        for name in facts.written_kwargs:
            yield from tensors_of(kwargs.get(name))


_HOLDERS = (list, tuple, dict)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an argument or result."""
    return each_in(value, torch.Tensor)


def each_in(value: Any, kind: Any) -> Iterator[Any]:
    """What is of a class in an argument: itself, or items of a list, tuple or dictionary."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, kind):
                yield item
            elif isinstance(item, _HOLDERS):  # and not each number of a shape
                yield from each_in(item, kind)
    elif isinstance(value, dict):
        for item in value.values():
            yield from each_in(item, kind)


def replaced(value: Any, kind: Any, make: Callable[[Any], Any]) -> Any:
    """The same argument with another of each that `each_in` gives. A dictionary is always a new one."""
    if isinstance(value, kind):
        return make(value)
    if isinstance(value, dict):
        return {name: replaced(item, kind, make) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and any(True for _ in each_in(value, kind)):
        return type(value)([replaced(item, kind, make) for item in value])
    return value


def tensors_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """All tensor arguments of a call, in order."""
    found: list[torch.Tensor] = []
    for value in args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors_of(value))
    for value in kwargs.values():
        found.extend(tensors_of(value))
    return found


@dataclass(slots=True, eq=False)
class WholeCall:
    """A call that CUDA makes as one and a CPU build takes apart: kernels there, forward and backward."""

    forward: int
    backward: int


class Call:
    """One operator call, as handed to an observer: what it is, what it got, where it runs."""

    __slots__ = (
        "args",
        "facts",
        "fallback",
        "func",
        "infos",
        "inputs",
        "kwargs",
        "mixed",
        "on_cuda",
        "result",
        "whole",
    )

    def __init__(
        self, func: Any, facts: OperatorFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.func = func
        self.facts = facts
        self.args = args
        self.kwargs = kwargs
        self.inputs = tensors_of_call(args, kwargs)
        self.infos: list[StorageInfo] = []  # of the inputs' storages
        self.on_cuda = False
        self.mixed = False
        self.result: Any = None
        self.fallback: str | None = None
        self.whole: WholeCall | None = None


class Observer(Protocol):
    """Sees each operator before and after it ran, and what the host does between operators.

    Who derives from it need not say that one of the three is nothing to look at.
    """

    def before(self, call: Call) -> None:
        """An operator is about to run, on arguments that it has not written to yet."""
        return

    def after(self, call: Call) -> None:
        """It ran, and the call has its result."""
        return

    def event(self, event: HostEvent) -> None:
        """The host did something that is no operator."""
        return
