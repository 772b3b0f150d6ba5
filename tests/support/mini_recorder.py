"""Just enough of a recorder for tests: plain CPU code in, an Iteration out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from graphdoctor.values.recording import Arg, External, Iteration, Op, Opaque, TensorUse
from tests.support.builders import iteration, op


class _Recorder(TorchDispatchMode):
    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self.ops: list[Op] = []
        self._storages: dict[int, int] = {}
        self._alive: list[torch.UntypedStorage] = []

    def use(self, value: torch.Tensor) -> TensorUse:
        storage = value.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = len(self._storages)
            self._alive.append(storage)
        return TensorUse(
            storage=self._storages[storage._cdata],
            shape=tuple(value.shape),
            stride=tuple(value.stride()),
            offset=value.storage_offset(),
            dtype=str(value.dtype).removeprefix("torch."),
            device=self._device,
            itemsize=value.itemsize,
        )

    def _arg(self, value: Any) -> Arg:
        if isinstance(value, torch.Tensor):
            return self.use(value)
        if isinstance(value, (list, tuple)):
            return tuple(self._arg(each) for each in value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return Opaque(str(value))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorded = tuple(self._arg(arg) for arg in args)
        named = tuple((name, self._arg(value)) for name, value in kwargs.items())
        written = [
            given.untyped_storage()._cdata
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for given in tree_iter(args[place] if place < len(args) else kwargs.get(argument.name))
            if isinstance(given, torch.Tensor)
        ]
        result = func(*args, **kwargs)
        self.ops.append(
            op(
                str(func),
                recorded,
                [self.use(each) for each in tree_iter(result) if isinstance(each, torch.Tensor)],
                writes=[self._storages[storage] for storage in written],
                kwargs=named,
                device=self._device,
                tags=[str(tag).rpartition(".")[2] for tag in func.tags],
            )
        )
        return result


def record(
    step: Callable[..., Any], inputs: Sequence[torch.Tensor], *, device: str = "cpu"
) -> Iteration:
    """The operators of one call, as if they had run on `device`; inputs have the first storages."""
    recorder = _Recorder(device)
    externals = [
        External(recorder.use(each).storage, "input", f"inputs[{at}]", device)
        for at, each in enumerate(inputs)
    ]
    with recorder:
        results = [each for each in tree_iter(step(*inputs)) if isinstance(each, torch.Tensor)]
    outputs = [recorder.use(each) for each in results]
    return iteration(recorder.ops, externals=externals, outputs=outputs)
