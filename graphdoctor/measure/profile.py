"""Profiles a step with torch.profiler, and keeps the trace in files.

The profiler runs alone: a dispatch or function mode of ours beside it would be what it sees.
"""

from __future__ import annotations

import gzip
import os
import re
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from graphdoctor.trace import Trace, read_trace
from graphdoctor.trace.read.names import KeptTrace, kept_trace
from graphdoctor.values.errors import UsageError

_KINETO_LEVEL = "KINETO_LOG_LEVEL"
# torch-tb-profiler 0.4.3, the last release, knows the categories of 2021: with today's names every
# device time is 0 (pytorch/kineto#1166, fixed there and never released).
_TENSORBOARD_CATEGORIES = {
    b"cuda_runtime": b"Runtime",
    b"cuda_driver": b"Runtime",
    b"fwdbwd": b"forward_backward",
}
_CATEGORY = re.compile(rb'("cat"\s*:\s*")(cuda_runtime|cuda_driver|fwdbwd)"')
# A dispatch mode, as the emulated device is one, sees the operator that opens an annotation: the annotation begins
# inside the mode's span and ends after it, and viewers refuse or drop spans that cross.
_MODE = re.compile(
    rb'\{\s*"ph"\s*:\s*"X"\s*,\s*"cat"\s*:\s*"cpu_op"\s*,\s*"name"\s*:\s*"PythonDispatchMode"'
    rb"[^{}]*\{[^{}]*\}\s*\}\s*,\s*"
)
_PACKING = 6  # gzip's own default; 9, Python's, is slower and hardly smaller


class Profile(Struct, frozen=True):
    """What the profiler saw, and the files in which that is kept.

    Times are the profiler's: it slows the host by 1.7 to 2.3 times, and does not slow the device.
    """

    trace: Trace
    kept: KeptTrace | None = None


def profile_step(
    run: Callable[[], object],
    *,
    steps: int = 3,
    trace_dir: Path | None = None,
) -> Profile:
    """Profile `steps` runs of the step, after one that does not count.

    `trace_dir`: keep the Chrome trace there, as it is and as TensorBoard's plugin reads it.
    Without a GPU there are operators of the CPU only. Raises UsageError when `trace_dir` cannot be written.
    """
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "step.pt.trace.json"
        _run_profiled(run, steps, lambda profiler: profiler.export_chrome_trace(str(exported)))
        exported.write_bytes(_MODE.sub(b"", exported.read_bytes()))
        trace = read_trace(exported)
        kept = _keep(exported, trace_dir) if trace_dir is not None else None
    return Profile(trace, kept)


def ready_for_graphs() -> None:
    """Let the profiler set itself up before the first capture, not after it (pytorch#75504)."""
    from torch.profiler import profile

    activities, _ = _activities()
    with _quiet_kineto(), profile(activities=activities):
        pass


def _run_profiled(run: Callable[[], object], steps: int, on_ready: Callable[[Any], object]) -> None:
    from torch.profiler import profile, schedule

    activities, synchronize = _activities()
    # A schedule makes the profiler annotate the steps; its warm-up step loses the first kernels.
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    ran = profile(activities=activities, schedule=plan, on_trace_ready=on_ready)
    with _quiet_kineto(), warnings.catch_warnings():
        # The schedule has one cycle, so torch's warning that events of earlier cycles are gone is no news.
        warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each")
        with ran as profiler:
            for _ in range(steps + 1):
                run()
                synchronize()
                profiler.step()


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep kineto from writing its stages to stderr, unless the user asked for them."""
    if _KINETO_LEVEL in os.environ:
        yield
        return
    os.environ[_KINETO_LEVEL] = "99"
    try:
        yield
    finally:
        del os.environ[_KINETO_LEVEL]


def _activities() -> tuple[list[Any], Callable[[], object]]:
    """What the profiler can watch on the real machine, and how to wait for its device.

    `torch.cuda.is_available()` answers for the emulated device and cannot be asked.
    """
    import torch
    from torch.profiler import ProfilerActivity

    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    if count is None or not count():
        return [ProfilerActivity.CPU], lambda: None
    return [ProfilerActivity.CPU, ProfilerActivity.CUDA], torch.cuda.synchronize


def _keep(exported: Path, folder: Path) -> KeptTrace:
    kept = kept_trace(folder, f"{socket.gethostname()}_{os.getpid()}", time.time_ns())
    content = exported.read_bytes()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept.tensorboard.write_bytes(gzip.compress(for_tensorboard(content), _PACKING))
        kept.untouched.write_bytes(gzip.compress(content, _PACKING))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"Cannot write a trace to {folder}: {reason}.") from error
    return kept


def for_tensorboard(content: bytes) -> bytes:
    """The trace with categories that torch-tb-profiler knows, so that it shows device times."""
    return _CATEGORY.sub(lambda match: match[1] + _TENSORBOARD_CATEGORIES[match[2]] + b'"', content)
