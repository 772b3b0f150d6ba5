"""The GPU's clocks and other processes during a measurement -> a note, if they spoil the figures."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

import torch
from msgspec import Struct

from graphdoctor.values.figures import count_text

_SLOWDOWNS = {
    "SwPowerCap": "power limit",
    "HwSlowdown": "hardware slowdown",
    "HwThermalSlowdown": "heat",
    "SwThermalSlowdown": "heat",
    "HwPowerBrakeSlowdown": "power brake",
}


class GpuState(Struct, frozen=True):
    """One look at the current GPU. `sm_mhz` is the clock of its multiprocessors now."""

    sm_mhz: int
    slowed_by: tuple[str, ...]
    other_processes: int


def gpu_state() -> GpuState | None:
    """Ask NVML about the current device; None without nvidia-ml-py, a driver, or an answer."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or no driver: NVMLError is only known once it is
        return None
    try:
        return _look(nvml)
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _look(nvml: Any) -> GpuState:
    handle = _handle(nvml)
    # Drivers before 535 know the older name only.
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    ask = ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    reasons = int(ask(handle))
    slowed = [
        words
        for name, words in _SLOWDOWNS.items()
        if reasons & getattr(nvml, f"nvmlClocksEventReason{name}", 0)
    ]
    # Whoever started this process, as an analysis does for a strategy, waits for it.
    own = (os.getpid(), os.getppid())
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return GpuState(
        sm_mhz=int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        slowed_by=tuple(dict.fromkeys(slowed)),
        other_processes=sum(process.pid not in own for process in running),
    )


def _handle(nvml: Any) -> Any:
    """torch numbers the visible devices, NVML all of them; both know the UUID."""
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is not None:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return nvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())


def clock_note(states: Sequence[GpuState | None]) -> str:
    """What a reader must know about the GPU during the measurement; "" if nothing was seen."""
    seen = [state for state in states if state is not None]
    notes = []
    slowed = dict.fromkeys(reason for state in seen for reason in state.slowed_by)
    if slowed:
        slowest, fastest = min(s.sm_mhz for s in seen), max(s.sm_mhz for s in seen)
        notes.append(f"the GPU was slowed down by {', '.join(slowed)} ({slowest} to {fastest} MHz)")
    others = max((state.other_processes for state in seen), default=0)
    if others:
        notes.append(f"{count_text(others, 'other process')} used the GPU")
    return "; ".join(notes)
