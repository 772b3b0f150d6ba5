"""Operator calls and host events of one iteration -> the plain values of a recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from msgspec.structs import replace

from graphdoctor.device.observe.collectives import exchange_of, runs_with_others
from graphdoctor.device.observe.operators import Call, WholeCall, tensors_of, written_tensors
from graphdoctor.device.observe.storages import StorageInfo, StorageTable, arg_of, use_of
from graphdoctor.record.scopes import Scopes
from graphdoctor.target.frames import locate
from graphdoctor.values.host_events import HostEvent
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import (
    External,
    Op,
    Opaque,
    OriginKind,
    Phase,
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
