"""A Chrome trace file of torch.profiler (plain or gzip) in, a Trace out."""

from __future__ import annotations

import gc
import gzip
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from graphdoctor.errors import UsageError
from graphdoctor.trace.trace import ApiCall, DeviceEvent, OperatorEvent, StepMark, Trace

_GZIP_MAGIC = b"\x1f\x8b"
_CONTROL_CHARACTERS = re.compile(rb"[\x00-\x1f]")
# "Runtime" is what torch-tb-profiler calls both of the others.
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "Runtime"})
_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}


class _Args(Struct, gc=False):
    correlation: int | None = None
    external_id: int | str | None = field(default=None, name="External id")
    device: int | str | None = None
    stream: int | str | None = None
    nbytes: int | float | str | None = field(default=None, name="bytes")
    dims: tuple[Any, ...] | None = field(default=None, name="Input Dims")
    strides: tuple[Any, ...] | None = field(default=None, name="Input Strides")
    dtypes: tuple[Any, ...] | None = field(default=None, name="Input type")
    concrete: tuple[Any, ...] | None = field(default=None, name="Concrete Inputs")


class _Event(Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    # Integers stay integers: a float holds microseconds since 1970 only to a quarter of one.
    ts: int | float = 0
    dur: int | float = 0
    tid: int | str = 0
    args: _Args | None = None


class _Device(Struct):
    name: str = ""


class _File(Struct):
    events: list[_Event] = field(name="traceEvents")
    devices: list[_Device] = field(default_factory=list, name="deviceProperties")


_NO_ARGS = _Args()


def read_trace(path: Path) -> Trace:
    """Read one trace file. Raises UsageError when it is missing, cut short or something else."""
    content = _content(path)
    was_enabled = gc.isenabled()
    gc.disable()  # a million small objects and no cycles: the collector would triple the time
    try:
        return _trace(_decode(content, path))
    finally:
        if was_enabled:
            gc.enable()


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw.startswith(_GZIP_MAGIC) else raw
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"Cannot read the trace {path}: {reason}.") from error
    except (EOFError, zlib.error) as error:
        raise UsageError(f"The trace {path} is cut short: its gzip stream does not end.") from error


def _decode(content: bytes, path: Path) -> _File:
    try:
        return _decode_strict(content)
    except msgspec.DecodeError:
        # Kineto writes raw control characters inside names (pytorch/pytorch#130622).
        cleaned = _CONTROL_CHARACTERS.sub(b" ", content)
    try:
        return _decode_strict(cleaned)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{path} is not a complete torch.profiler trace ({error}); export it again."
        ) from error


def _decode_strict(content: bytes) -> _File:
    if content.lstrip()[:1] == b"[":
        return _File(events=msgspec.json.decode(content, type=list[_Event]))
    return msgspec.json.decode(content, type=_File)


def _trace(file: _File) -> Trace:
    device: list[DeviceEvent] = []
    calls: list[ApiCall] = []
    operators: list[OperatorEvent] = []
    steps: list[StepMark] = []
    for event in file.events:
        if event.ph != "X":
            continue
        if event.cat in _KINDS:
            device.append(_device_event(event))
        elif event.cat in _CALLS:
            calls.append(_call(event))
        elif event.cat == "cpu_op":
            operators.append(_operator(event))
        elif event.cat == "user_annotation" and event.name.startswith("ProfilerStep#"):
            start, end = _interval(event)
            steps.append(StepMark(event.name, start, end))
    return Trace(
        device_names=tuple(entry.name for entry in file.devices),
        device_events=tuple(sorted(device, key=lambda item: (item.start_ns, item.end_ns))),
        calls=tuple(sorted(calls, key=lambda item: item.start_ns)),
        operators=tuple(sorted(operators, key=lambda item: (item.start_ns, -item.end_ns))),
        steps=tuple(sorted(steps, key=lambda item: item.start_ns)),
    )


def _device_event(event: _Event) -> DeviceEvent:
    args = event.args or _NO_ARGS
    start, end = _interval(event)
    return DeviceEvent(
        kind=_KINDS[event.cat],  # type: ignore[arg-type]
        name=event.name,
        start_ns=start,
        end_ns=end,
        device=_integer(args.device) or 0,
        stream=_integer(args.stream) or 0,
        correlation=args.correlation,
        external_id=_integer(args.external_id),
        nbytes=_integer(args.nbytes) or 0,
    )


def _call(event: _Event) -> ApiCall:
    args = event.args or _NO_ARGS
    start, end = _interval(event)
    return ApiCall(event.name, start, end, event.tid, args.correlation, _integer(args.external_id))


def _operator(event: _Event) -> OperatorEvent:
    args = event.args or _NO_ARGS
    start, end = _interval(event)
    return OperatorEvent(
        name=event.name,
        start_ns=start,
        end_ns=end,
        thread=event.tid,
        external_id=_integer(args.external_id),
        dims=args.dims,
        strides=args.strides,
        dtypes=args.dtypes,
        concrete=args.concrete,
    )


def _interval(event: _Event) -> tuple[int, int]:
    """Start and end in ns; the duration is rounded on its own, so that `ts` costs it nothing."""
    start = round(event.ts * 1000)
    return start, start + max(0, round(event.dur * 1000))


def _integer(value: int | float | str | None) -> int | None:
    if value is None or isinstance(value, str):
        return int(value) if value and value.lstrip("-").isdigit() else None
    return int(value)
