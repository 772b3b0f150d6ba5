"""Calls under watch -> the ATen operators they dispatched, with plain arguments and what waited."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MOST_CALLS = 40  # operators of one sample that are written down
_SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32", "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "b8", "complex64": "c64",
    "complex128": "c128",
}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def plain(value: Any) -> Any:
    """An argument as JSON: a tensor as {"d": dtype, "s": shape, "c": whether it is on CUDA}."""
    if isinstance(value, torch.Tensor):
        return {"d": dtype_name(value.dtype), "s": list(value.shape), "c": int(value.is_cuda)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value][:32]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and value - value == 0:  # JSON has no infinities
        return value
    return {"o": str(value)[:60]}


def described(value: Any) -> str:
    """An argument as people read it: f32[5,5], cpu tensors marked."""
    if isinstance(value, torch.Tensor):
        name = dtype_name(value.dtype)
        place = "" if value.is_cuda else "@cpu"
        return f"{_SHORT.get(name, name)}[{','.join(map(str, value.shape))}]{place}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(described, value))})"
    if isinstance(value, dict):
        return ", ".join(f"{key}={described(item)}" for key, item in value.items())
    return getattr(value, "__name__", None) or repr(value)


class Waits:
    """How often torch's own observers saw the host wait for the device."""

    def __init__(self) -> None:
        self._warned: list[warnings.WarningMessage] = []
        self._traced = 0

    @property
    def count(self) -> int:
        warned = sum("synchronizing CUDA operation" in str(w.message) for w in self._warned)
        return max(warned, self._traced)

    @contextmanager
    def watched(self, traces: list[Callable[[], None]]) -> Iterator[None]:
        traces.append(self._trace)
        with warnings.catch_warnings(record=True) as self._warned:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode(1)
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode(0)
                traces.remove(self._trace)

    def _trace(self) -> None:
        self._traced += 1


def trace_waits() -> list[Callable[[], None]]:
    """Ask torch to call each of a list's functions whenever the host waits. Cannot be taken back."""
    watching: list[Callable[[], None]] = []

    def tell(*_: object) -> None:
        for watcher in watching:
            watcher()

    try:
        from torch.cuda import _gpu_trace

        torch._C._activate_gpu_trace()
        for kind in ("device", "stream", "event"):
            getattr(_gpu_trace, f"register_callback_for_{kind}_synchronization")(tell)
    except (ImportError, AttributeError):
        return watching
    return watching


class Dispatched(TorchDispatchMode):
    """Writes down each operator: [name, args, kwargs, waits], and the one that raised."""

    def __init__(self, waits: Waits | None = None) -> None:
        super().__init__()
        self.calls: list[list[Any]] = []
        self.left_out = 0
        self.is_random = False
        self.raised: list[Any] | None = None
        self._waits = waits

    @property
    def has_no_values(self) -> bool:
        """Whether the last operator made memory without values, which no two runs have alike."""
        return bool(self.calls) and "empty" in self.calls[-1][0]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keeps torch from importing its compiler (seconds) to wrap the method below."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = [str(func), plain(args), {key: plain(item) for key, item in kwargs.items()}, 0]
        if len(self.calls) < MOST_CALLS:
            self.calls.append(call)
        else:
            self.left_out += 1
        self.is_random |= any(
            "nondeterministic_seeded" in str(tag) for tag in getattr(func, "tags", ())
        )
        before = self._waits.count if self._waits else 0
        try:
            return func(*args, **kwargs)
        except Exception:
            self.raised = self.raised or call[:3]
            raise
        finally:
            call[3] = (self._waits.count if self._waits else 0) - before
