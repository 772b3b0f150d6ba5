"""Records one run of a step as an iteration: operator calls and host events as plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import msgspec
import torch
from msgspec.structs import replace

from graphdoctor.device.observe.collectives import exchange_of, runs_with_others
from graphdoctor.device.observe.operators import Call, WholeCall, tensors_of, written_tensors
from graphdoctor.device.observe.storages import StorageInfo, StorageTable, arg_of, use_of
from graphdoctor.record.held_by_wrappers import gathered_parameters
from graphdoctor.record.scopes import Scopes
from graphdoctor.record.session import Session
from graphdoctor.record.variation import floating_values, least_and_largest
from graphdoctor.target.frames import locate
from graphdoctor.target.state.snapshot import NamedState, has_memory, named_state
from graphdoctor.target.state.tree import input_leaves, leaves
from graphdoctor.target.target import Inputs
from graphdoctor.values.host_events import HostEvent
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import (
    External,
    Iteration,
    Leaf,
    Op,
    Opaque,
    OriginKind,
    Phase,
    Sample,
    StateChange,
    TensorUse,
)

# Operators that take a CPU tensor beside CUDA tensors on purpose, and copy it.
_TAKES_BOTH = frozenset(
    {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index",
     "set_", "_pin_memory", "_pack_padded_sequence", "_fused_adam_", "_fused_adamw_", "_fused_sgd_",
     "_ctc_loss", "_cudnn_ctc_loss"}
)  # fmt: skip

# Why the emulated result is not that of a GPU: eager rejects the operator there, and the step does not run.
ON_BOTH_DEVICES = (
    "receives GPU and CPU tensors; move the CPU tensor to the GPU, because CUDA operators accept a CPU"
    " tensor only if it is 0-d"
)


class Maker(NamedTuple):
    """Who made a storage: which iteration, which operator, on which line."""

    iteration: int
    operator: str
    location: Location | None


class OperatorObserver:
    """Builds the recording of one iteration while the step runs.

    `iteration` is unique over all runs of a session, so that a storage which an earlier run made is
    told from one that this run made. `named` gives origin and path of storages known beforehand.
    """

    def __init__(
        self,
        table: StorageTable,
        scopes: Scopes,
        *,
        iteration: int,
        named: dict[int, tuple[str, str]],
        device_of: Callable[[torch.Tensor, StorageInfo], str],
    ) -> None:
        self.ops: list[Op] = []
        self.events: list[HostEvent] = []
        self.externals: dict[int, External] = {}
        self._table = table
        self._scopes = scopes
        self._iteration = iteration
        self._named = named
        self._device_of = device_of
        self._forward_of: dict[int, Op] = {}  # autograd's sequence number -> forward operator
        self._whole: dict[int, WholeCall] = {}  # forward operator -> the call that it is a part of
        self._begun: set[tuple[WholeCall, bool]] = set()  # with whether in backward
        self._stream = torch.cuda.current_stream() if runs_with_others() else None

    def before(self, call: Call) -> None:
        """Note the storages that come from outside, before the call can write them."""
        for tensor, info in zip(call.inputs, call.infos, strict=True):
            maker = info.maker
            if not isinstance(maker, Maker) or maker.iteration != self._iteration:
                self._note_external(tensor, info, call)

    def after(self, call: Call) -> None:
        """Append the operator."""
        with torch._C.DisableTorchFunction():
            made = list(tensors_of(call.result))
            infos = [self._table.info(tensor) for tensor in made]
            op = self._op(call, tuple(map(self._use, made, infos)))
        self.ops.append(op)
        for info in infos:
            if info not in call.infos:  # an argument was made before
                info.maker = Maker(self._iteration, op.name, op.location)

    def event(self, event: HostEvent) -> None:
        place = locate()
        self.events.append(
            replace(
                event,
                op_index=len(self.ops),
                location=place.location,
                stack=place.stack,
                module=self._scopes.module,
            )
        )

    def use(self, tensor: torch.Tensor) -> TensorUse:
        """A tensor as a value."""
        return self._use(tensor, self._table.info(tensor))

    def _use(self, tensor: torch.Tensor, info: StorageInfo) -> TensorUse:
        return use_of(tensor, info, self._device_of(tensor, info))

    def _op(self, call: Call, outputs: tuple[TensorUse, ...]) -> Op:
        facts = call.facts
        device = "cuda:0" if call.on_cuda else "cpu"
        place = locate()
        node = torch._C._current_autograd_node()
        forward = None
        # On a GPU the engine has a thread of its own, on whose stack there is nobody who called it.
        if node is not None and (place.in_engine or place.location is None):
            number = node._sequence_nr()
            # An operator that writes into a view gets these two nodes after it ran, beside its own.
            later = {"torch::autograd::CopySlices": 1, "AsStridedBackward0": 2}.get(node.name(), 0)
            forward = self._forward_of.get(number) or self._forward_of.get(number - later)
        scopes = self._scopes
        use = self._use_in(call)
        location, stack, module = place.location, place.stack, scopes.module
        if forward is not None:
            location, stack, module = forward.location, forward.stack, forward.module
            if scopes.recomputed_module is not None:
                module = scopes.recomputed_module
        phase: Phase = "forward" if node is None else "backward"
        op = Op(
            index=len(self.ops),
            name=facts.name,
            args=tuple([arg_of(value, use) for value in call.args]),
            kwargs=tuple(
                [
                    (name, Opaque(device) if name == "device" else arg_of(value, use))
                    for name, value in call.kwargs.items()
                ]
            ),
            outputs=outputs,
            writes=self._writes(call),
            tags=facts.tags,
            phase="optimizer" if scopes.in_optimizer else phase,
            module=module,
            device=device,
            location=location,
            stack=stack,
            forward_index=forward.index if forward is not None else None,
            fallback=_fallback_of(call),
            kernels=self._kernels(call, forward),
            exchange=exchange_of(call, on_side_stream=torch.cuda.current_stream() != self._stream)
            if facts.is_collective
            else None,
        )
        if node is None:
            # autograd makes an operator's node just before it calls the operator
            self._forward_of.setdefault(torch.autograd._get_sequence_nr() - 1, op)
        return op

    def _use_in(self, call: Call) -> Callable[[torch.Tensor], TensorUse]:
        """How a tensor among the arguments is found: by what is known of its storage, unless the call may swap it."""
        if call.facts.written_args or call.facts.written_kwargs:
            return self.use
        known = dict(zip(map(id, call.inputs), call.infos, strict=True))

        def use(tensor: torch.Tensor) -> TensorUse:
            return self._use(tensor, known.get(id(tensor)) or self._table.info(tensor))

        return use

    def _kernels(self, call: Call, forward: Op | None) -> int | None:
        """Of a part of what is one call for CUDA: all that it launches, at the first part."""
        whole = self._whole.get(forward.index) if forward is not None else call.whole
        if whole is None:
            return None
        if forward is None:
            self._whole[len(self.ops)] = whole
        key = (whole, forward is not None)
        if key in self._begun:
            return 0
        self._begun.add(key)
        return whole.backward if forward is not None else whole.forward

    def _writes(self, call: Call) -> tuple[int, ...]:
        facts = call.facts
        if not facts.written_args and not facts.written_kwargs:
            return ()
        number = self._table.info
        written = [number(t).number for t in written_tensors(facts, call.args, call.kwargs)]
        return tuple(dict.fromkeys(written))

    def _note_external(self, tensor: torch.Tensor, info: StorageInfo, call: Call) -> None:
        if info.number in self.externals:
            return
        maker = info.maker
        device = self._device_of(tensor, info)
        named = self._named.get(info.number)
        location = None
        origin: OriginKind
        if isinstance(maker, Maker) and maker.iteration > 0:
            name = named[1] if named is not None else maker.operator
            origin, location = "previous-iteration", maker.location
        elif named is not None:
            origin, name = cast(OriginKind, named[0]), named[1]
        elif call.facts.base_name in ("lift_fresh", "lift"):
            # torch.tensor(...) makes its tensor below the dispatcher: on the device, where one is named.
            info.maker = Maker(self._iteration, "host data", locate().location)
            return
        else:
            origin, name = "unknown", ""
        self.externals[info.number] = External(
            storage=info.number,
            origin=origin,
            name=name,
            device=device,
            location=location,
        )


def _fallback_of(call: Call) -> str | None:
    """Why the emulated result may differ from a GPU's."""
    if call.fallback is not None:
        return call.fallback
    if call.mixed and call.facts.base_name not in _TAKES_BOTH:
        return f"{call.facts.name} {ON_BOTH_DEVICES}"
    return None


# At an iteration's inputs and outputs, and at the state, when it has run.
Look = Callable[[Inputs, object, NamedState], None]


class Observed(NamedTuple):
    """One run of the step, before it is known what the host changed in it."""

    inputs: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    observer: OperatorObserver
    state: NamedState | None = None  # after the iteration, if it was read

    def iteration(self, index: int, capturing: bool, changes: tuple[StateChange, ...]) -> Iteration:
        return Iteration(
            index=index,
            capturing=capturing,
            inputs=self.inputs,
            ops=tuple(self.observer.ops),
            events=tuple(self.observer.events),
            externals=tuple(self.observer.externals.values()),
            outputs=self.outputs,
            changes=changes,
        )


def observe(
    session: Session,
    index: int,
    *,
    run: int,
    storages: Mapping[str, int],
    look: Look | None = None,
) -> Observed:
    """Run the step on the inputs of an iteration; others may look, too.

    `run` is a number that no other recorded run has; `storages` are those of the state, by path.
    """
    inputs = session.inputs(index)
    given = input_leaves(inputs)
    observer = OperatorObserver(
        session.device.table,
        session.scopes,
        iteration=run,
        named=_named_storages(session, storages, given),
        device_of=session.device.device_name_of,
    )
    with torch._C.DisableTorchFunction():
        input_values = tuple(_leaf(observer, path, value) for path, value in given.items())
    with session.device.observed_by(observer):
        result = session.call(inputs)
    with torch._C.DisableTorchFunction():
        outputs = tuple(
            _output(observer, path, value, session.device.table)
            for path, value in leaves(result, "output").items()
        )
    state = None
    if look is not None:
        state = named_state(session.target.roots)
        look(inputs, result, state)
    return Observed(input_values, outputs, observer, state)


def _output(observer: OperatorObserver, path: str, value: object, table: StorageTable) -> Leaf:
    leaf = _leaf(observer, path, value)
    if isinstance(value, torch.Tensor) and not table.has_true_values(value):
        return leaf
    with torch._C._DisableTorchDispatch():  # our look at it is no part of the step
        values = floating_values(value)
        has_nan = values is not None and math.isnan(least_and_largest(values)[0])
    return msgspec.structs.replace(leaf, has_nan=has_nan, sample=sample_of(value))


def _named_storages(
    session: Session, storages: Mapping[str, int], given: dict[str, object]
) -> dict[int, tuple[str, str]]:
    """Storages with a name before the step runs: its state, also where it is passed in, and its inputs."""
    named: dict[int, tuple[str, str]] = {}
    for path, number in storages.items():
        named.setdefault(number, ("state", path))
    for path, value in given.items():
        if isinstance(value, torch.Tensor):
            named.setdefault(session.device.table.info(value).number, ("input", path))
    for path, tensor in gathered_parameters(session.target.roots):
        named.setdefault(session.device.table.info(tensor).number, ("state", path))
    return named


def _leaf(observer: OperatorObserver, path: str, value: object) -> Leaf:
    if isinstance(value, torch.Tensor):
        return Leaf(path, observer.use(value))
    try:
        return Leaf(path, repr(value)[:200])
    except Exception:  # __repr__ is the user's code
        return Leaf(path, type(value).__name__)


_MOST = 256  # values, spread evenly over the tensor


def sample_of(value: object) -> Sample | None:
    """None for what is no plain tensor with values; the host may wait for the device here."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return None
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        return None
    if not has_memory(value):
        return None
    with torch._C._DisableTorchDispatch():  # our look at it is no part of the step
        flat = value.detach().resolve_conj().resolve_neg()
        flat = (torch.view_as_real(flat) if flat.is_complex() else flat).reshape(-1)
        step = max(1, -(-flat.numel() // _MOST))
        values = flat[::step].double().cpu()
        eps = torch.finfo(flat.dtype).eps if flat.dtype.is_floating_point else 0.0
        scale = _largest(flat) if eps else 0.0
    return Sample(tuple(values.tolist()), scale=scale, eps=eps)


def _largest(flat: torch.Tensor) -> float:
    """The largest finite magnitude among these values."""
    low, high = least_and_largest(flat)
    if math.isfinite(largest := max(-low, high)):
        return largest
    if flat.dtype.itemsize == 1:
        flat = flat.float()  # float8 lacks the operators
    finite = flat[flat.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
