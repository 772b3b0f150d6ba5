"""What NVML says about the GPU while something is timed, and a machine without it."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from graphdoctor.measure.wall_clock import GpuState, clock_note, gpu_state


class NVMLError(Exception):
    pass


def fake_nvml(monkeypatch: pytest.MonkeyPatch, *, reasons: int = 0, **changes: object) -> None:
    module = ModuleType("pynvml")
    members: dict[str, object] = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1410,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=os.getpid())],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: reasons,
        "nvmlClocksEventReasonSwPowerCap": 4,
        "nvmlClocksEventReasonHwThermalSlowdown": 64,
        "nvmlClocksEventReasonSwThermalSlowdown": 32,
        **changes,
    }
    for name, value in members.items():
        if value is not None:
            setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def test_without_the_package_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert gpu_state() is None


def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise NVMLError("driver not loaded")

    fake_nvml(monkeypatch, nvmlInit=fail)

    assert gpu_state() is None


def test_a_question_that_the_driver_refuses_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: object, kind: object) -> int:
        raise NVMLError("not supported")

    fake_nvml(monkeypatch, nvmlDeviceGetClockInfo=fail)

    assert gpu_state() is None


def test_a_quiet_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch)

    assert gpu_state() == GpuState(1410, (), 0)


def test_slowdowns_and_neighbours_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=os.getpid() + 1)]
    fake_nvml(
        monkeypatch,
        reasons=4 | 64 | 32,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: processes,
    )

    assert gpu_state() == GpuState(1410, ("power limit", "heat"), 1)


def test_an_old_driver_s_name_for_the_reasons_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(
        monkeypatch,
        nvmlDeviceGetCurrentClocksEventReasons=None,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 4,
    )

    state = gpu_state()
    assert state is not None and state.slowed_by == ("power limit",)


def test_a_note_says_what_spoils_the_figures() -> None:
    assert clock_note([None, None]) == ""
    assert clock_note([GpuState(1410, (), 0), None]) == ""
    assert clock_note([GpuState(1410, (), 0), GpuState(900, ("heat", "power limit"), 2)]) == (
        "the GPU was slowed down by heat, power limit (900 to 1410 MHz); "
        "2 other processes used the GPU"
    )
    assert clock_note([GpuState(1410, (), 1)]) == "1 other process used the GPU"
