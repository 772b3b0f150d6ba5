"""Shows observers every ATen operator, and runs it on the CPU as if on the device that it belongs to."""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass_type,
)

from graphdoctor.device.observe.collectives import UNWAITED, doubt_of_ranks
from graphdoctor.device.observe.fallback import EmulationLimit, run_operator
from graphdoctor.device.observe.interpreter import ProfileFunction, paused
from graphdoctor.device.observe.operators import (
    Call,
    Observer,
    OperatorFacts,
    WholeCall,
    facts_of,
    is_whole_for_nested,
    parts_in_order,
    tensors_of,
    tensors_of_call,
    written_tensors,
)
from graphdoctor.device.observe.storages import StorageTable, parts_of
from graphdoctor.target.state.saved_tensor import PARTS_OF_SPARSE, wraps_others

# What is PyTorch's own: op_db and its source say what their kernels do in a capture.
_PYTORCHS = (
    "aten", "prims", "prim", "inductor", "rngprims", "debugprims",
    "c10d", "_c10d_functional", "_c10d_functional_autograd",
)  # fmt: skip
# Most of these have no kernel for CUDA, and a build for the CPU cannot tell which do.
_FOR_CPUS = ("quantized.", "_quantized.", "mkldnn.", "onednn.")


def python_body(func: Any, facts: OperatorFacts) -> Callable[..., Any] | None:
    """The function that `torch.library.custom_op` made an operator of, where it is for all devices.

    None where a GPU would run something else: a kernel that was registered for CUDA alone.
    Also what `fully_shard` made operators of: their schemas do not say what they write.
    """
    if facts.name.startswith("fsdp."):
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives

        if facts.base_name == "chunk_cat_mixed_dtype":
            return _chunk_cat_mixed_dtype
        forms = ("{}_cuda", "{}", "_{}_default")
        found = (getattr(_fsdp_collectives, each.format(facts.base_name), None) for each in forms)
        return next((body for body in found if body is not None and _fits(body, func)), None)
    if _is_pytorchs(facts):
        return None
    from torch._library import custom_ops

    kernels = getattr(custom_ops.OPDEFS.get(func._name), "_backend_fns", {})
    if kernels:
        # Their first call imports it, and with torch 2.6 that import reads tensors: here no mode sees it.
        importlib.import_module("torch._dynamo")
    return None if "cuda" in kernels else kernels.get(None)


def _chunk_cat_mixed_dtype(
    tensors: list[torch.Tensor], dim: int, num_chunks: int, *, out: torch.Tensor
) -> None:
    """In C++ since torch 2.15; what it runs on CUDA says `foreach_reduce_scatter_copy_in` of `_fsdp_collectives.py`."""
    if len({tensor.dtype for tensor in tensors}) > 1:
        tensors = [tensor.to(out.dtype) for tensor in tensors]
    torch._chunk_cat(tensors, dim, num_chunks, out=out)


def _fits(body: Callable[..., Any], func: Any) -> bool:
    """Since torch 2.15 a function that calls an operator has the operator's name, and other arguments."""
    return len(inspect.signature(body).parameters) == len(func._schema.arguments)


def unseen(facts: OperatorFacts) -> str | None:
    """Why the emulated result of a call may not be a GPU's; None for PyTorch's own operators."""
    if _is_pytorchs(facts):
        return None
    if facts.name.startswith(_FOR_CPUS):
        return f"{facts.name} is made for CPUs: whether a GPU has a kernel for it is unknown"
    return f"{facts.name} is not PyTorch's own: whether its kernel waits for the device is unknown"


# What is known of operators on sparse tensors: views and elementwise work launch kernels and no more, and
# of the others `operators/table.json` says when they wait. op_db has hardly any of them.
_KNOWN_OF_SPARSE = frozenset(
    (
        "_coalesce", "_coalesced_", "_foreach_add_", "_indices", "_nnz", "_sparse_addmm",
        "_sparse_log_softmax", "_sparse_softmax", "_sparse_sparse_matmul", "_to_copy", "_to_dense",
        "_values", "add", "add_", "addmm", "ccol_indices", "clone", "col_indices", "copy_",
        "crow_indices", "detach", "detach_", "div", "empty_like", "indices", "mm", "mul", "mul_", "neg",
        "row_indices", "sparse_mask", "t", "to_dense", "transpose", "values", "zero_", "zeros_like",
    )
)  # fmt: skip

_PRODUCTS = frozenset(("mul", "mul_", "div", "mm", "addmm"))


def unseen_of_sparse(facts: OperatorFacts, inputs: Sequence[torch.Tensor]) -> str | None:
    """Why it is unknown what a GPU's kernel does with sparse tensors; None without, or where it is known."""
    sparse = [tensor for tensor in inputs if tensor.layout in PARTS_OF_SPARSE]
    if not sparse:
        return None
    are_multiplied = len(sparse) > 1 and facts.base_name in _PRODUCTS
    is_known_product = facts.base_name == "mm" and sparse[0].layout == torch.sparse_coo
    if facts.base_name in _KNOWN_OF_SPARSE and (is_known_product or not are_multiplied):
        return None
    return f"{facts.name} has a sparse tensor: whether its kernel waits for the device is unknown"


def _is_pytorchs(facts: OperatorFacts) -> bool:
    """Higher-order operators have no namespace."""
    if facts.is_aten:
        return True
    namespace, dot, _ = facts.name.partition(".")
    return not dot or namespace in _PYTORCHS


_CPU = torch.device("cpu")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
# Their last result stays on the host. Source: aten/src/ATen/native/PackedSequence.cpp.
_LAST_RESULT_ON_HOST = frozenset({"_pack_padded_sequence"})


class DispatchMode(TorchDispatchMode):
    """What all modes of graphdoctor's have in common."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing its compiler (seconds) to wrap `__torch_dispatch__`."""
        return False


class ObservedMode(DispatchMode):
    """Shows every operator to the observers, before and after it ran; how it runs is the device's."""

    supports_higher_order_operators = True  # torch asks for it since 2.9

    def __init__(self, table: StorageTable, observers: tuple[Observer, ...] = ()) -> None:
        super().__init__()
        self.table = table
        self.observers = observers

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        profile = paused()
        try:
            if types and _wrap_others(types, args, kwargs):
                return NotImplemented  # their parts are plain tensors, whose operators come here
            kwargs = kwargs or {}
            if torch._C._get_dispatch_mode(_FAKE) is not None:
                return func(*args, **kwargs)  # somebody asks for shapes: nothing runs
            facts = facts_of(func)
            if facts.is_higher_order:  # to ask its class each time takes as long as all else here
                return self._run_in_parts(in_parts(func), args, kwargs, profile)
            if facts.is_marker:
                return func(*args, **kwargs)
            if facts.is_composite and not is_whole_for_nested(func, args):
                return self._run_in_parts(parts_in_order(func), args, kwargs, profile)
            if (body := self.body_of(func, facts)) is not None:
                return self._run_in_parts(body, args, kwargs, profile)
            call = Call(func, facts, args, kwargs)
            call.infos = [self.table.info(tensor) for tensor in call.inputs]
            self.place(call)
            for observer in self.observers:
                observer.before(call)
            if profile is not None and not _is_pytorchs(facts):
                sys.setprofile(profile)  # it may be written in Python
            self.run(call)
            for observer in self.observers:
                observer.after(call)
            return call.result
        finally:
            if profile is not None:
                sys.setprofile(profile)

    def _run_in_parts(
        self,
        body: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        profile: ProfileFunction | None,
    ) -> Any:
        """The operators in it come here, as those of any other function."""
        if profile is not None:
            sys.setprofile(profile)
        with self:
            return body(*args, **kwargs)

    def body_of(self, func: Any, facts: OperatorFacts) -> Callable[..., Any] | None:
        """What to run in place of an operator, operator by operator; None for the operator itself."""
        return None

    @abstractmethod
    def place(self, call: Call) -> None:
        """Decide where the call runs, from its arguments, before any observer sees it."""

    @abstractmethod
    def run(self, call: Call) -> None:
        """Set the call's result, and what is known of it only then."""


def _wrap_others(types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """Whether a subclass stands for other tensors: it says so, or it has no memory of its own."""
    if any(map(is_traceable_wrapper_subclass_type, types)):
        return True
    given = tensors_of_call(args, kwargs or {})
    return any(type(each) in types and wraps_others(each) for each in given)


class LogicalDeviceMode(ObservedMode):
    """Runs operators physically on the CPU and keeps track of the device each result lies on.

    `target` is set by the function mode while a call with an explicit device runs: None, or whether
    the results go to CUDA. `asking` are the arguments of the torch function that runs, if any;
    `whole` is what CUDA makes of that function, where it takes it as one call.
    """

    def __init__(self, table: StorageTable, run: Callable[[Call], Any] = run_operator) -> None:
        super().__init__(table)
        self._run = run
        self.target: bool | None = None
        self.asking: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.whole: WholeCall | None = None
        self._last_on_cuda = False

    def body_of(self, func: Any, facts: OperatorFacts) -> Callable[..., Any] | None:
        return python_body(func, facts)

    def run(self, call: Call) -> None:
        call.result = self._run(call)
        if call.facts.base_name.startswith("_foreach_"):
            # As CUDA's kernels do: of these operators autograd counts no writes before a mode sees them.
            for tensor in written_tensors(call.facts, call.args, call.kwargs):
                if not tensor.is_inference():
                    torch.autograd.graph.increment_version(tensor)
        if call.on_cuda:
            with torch._C.DisableTorchFunction():  # the function mode need not see what is asked
                call.fallback = call.fallback or self._doubt(call)
                self._mark_new(call)
        elif is_unblocked_copy_to_host(call):
            self.table.info(call.result).pinned = True  # torch allocates the result pinned

    def _doubt(self, call: Call) -> str | None:
        """Why a GPU may do something else than was done here."""
        found = unseen(call.facts) or unseen_of_sparse(call.facts, call.inputs)
        unwaited = self.table.unwaited
        if found is None and unwaited and any(info.number in unwaited for info in call.infos):
            found = UNWAITED
        return found or (doubt_of_ranks() if call.facts.is_collective else None)

    def place(self, call: Call) -> None:
        """From its arguments and the device that was asked for."""
        some_cuda = False
        cpu_with_dims = False
        for tensor, info in zip(call.inputs, call.infos, strict=True):
            if info.cuda:
                some_cuda = True
            elif tensor.dim() > 0:
                cpu_with_dims = True
        device = call.kwargs.get("device") if call.kwargs else None
        if device is not None and device.type == "cuda":  # C++ that was told so by another way
            call.kwargs = {**call.kwargs, "device": _CPU}
            call.on_cuda = True
        elif device is not None and device.type == "meta":
            call.on_cuda = False
        elif device is not None and self.target is not None:
            call.on_cuda = self.target
        elif not call.inputs:
            call.on_cuda = self._made_inside_cuda_code()
        else:
            call.on_cuda = some_cuda
        self._last_on_cuda = call.on_cuda
        call.whole = self.whole if call.on_cuda else None
        call.mixed = some_cuda and cpu_with_dims

    def _made_inside_cuda_code(self) -> bool:
        """Where a factory without tensors belongs: C++ asks for its tensors' physical device."""
        if torch._C._current_autograd_node() is not None and self.asking is None:
            return self._last_on_cuda
        if self.asking is None:
            return False
        args, kwargs = self.asking
        return any(map(self.table.is_cuda, tensors_of_call(args, kwargs)))

    def _mark_new(self, call: Call) -> None:
        """New storages of a CUDA call lie on CUDA; an output that is an input stays where it is."""
        table = self.table
        made = call.result
        if call.facts.base_name in _LAST_RESULT_ON_HOST:
            made = made[:-1]
        for result in tensors_of(made):
            for tensor in (result,) if result.layout is torch.strided else parts_of(result):
                info = table.info(tensor)
                if not info.cuda and info not in call.infos:
                    info.cuda = info.is_ours = True


def is_unblocked_copy_to_host(call: Call) -> bool:
    """`x.to("cpu", non_blocking=True)` of a tensor on the device."""
    if call.facts.base_name != "_to_copy" or call.on_cuda or not call.kwargs.get("non_blocking"):
        return False
    return call.infos[0].cuda


_OF_DTENSORS = "run_dtensor_rng_op"  # has a kernel for CUDA alone
_KEYS = (DispatchKey.CompositeExplicitAutograd, DispatchKey.CPU)


def in_parts(func: HigherOrderOperator) -> Callable[..., Any]:
    """What such an operator runs in eager mode: the functions that it was given, as its values decide.

    Raises EmulationLimit for one that has no such kernel.
    """
    if func.name() == _OF_DTENSORS and not torch.cuda.is_current_stream_capturing():
        return _drawing_as_dtensors_do
    kernel = next((func.py_kernels[key] for key in _KEYS if key in func.py_kernels), None)
    if kernel is None:
        raise EmulationLimit(f"torch has no code to run {func.name()} operator by operator")
    if not isinstance(kernel, FunctionType):
        return kernel
    # Some check that no mode is on, since compilers should not come here; what they run is to be seen.
    seen = {**kernel.__globals__, "_get_current_dispatch_mode": lambda: None}
    copy = FunctionType(
        kernel.__code__, seen, kernel.__name__, kernel.__defaults__, kernel.__closure__
    )
    copy.__kwdefaults__ = kernel.__kwdefaults__
    return copy


def _drawing_as_dtensors_do(start: int, end: int, op: Any, *args: Any, **kwargs: Any) -> Any:
    """A random operator on this rank's part of a DTensor: it draws numbers of its own.

    On a GPU the generator is moved to this part's place first, on the host. What replays draw then is not known.
    """
    return op(*args, **kwargs)
