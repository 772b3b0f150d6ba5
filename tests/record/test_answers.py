"""What the machine, the process and the environment tell a step: a doubt only where another answer is another step."""

from __future__ import annotations

import functools
import gc
import logging
import os
import shutil
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)
KEPT: list[float] = []
MODES = {"slow": False, "quick": True}
LOG = logging.getLogger(__name__)
USED = {"of the device": functools.partial(torch.cuda.memory_allocated, 0)}
BEGUN = np.datetime64("now")


def of_memory() -> bool:
    return torch.cuda.memory_allocated() > 1 << 40


def of_load() -> bool:
    return os.getloadavg()[0] > 1000


def of_times() -> bool:
    return os.times().elapsed > 1e15


def of_nothing_left() -> bool:
    return torch.cuda.mem_get_info()[1] < 1 or os.times().elapsed < 1e-9


def of_collecting() -> bool:
    return not gc.isenabled()


def of_gradients() -> bool:
    return not torch.is_grad_enabled()


def of_environment() -> bool:
    return os.environ.get("GRAPHDOCTOR_MODE", "a") == "b"


def of_numpys_clock() -> bool:
    return bool(np.datetime64("now") - BEGUN > np.timedelta64(3600, "s"))


def of_address() -> bool:
    return id([]) > 1 << 59


def of_collections() -> bool:
    return gc.get_count()[2] > 1 << 20


def of_dtype() -> bool:
    return torch.get_default_dtype() is torch.float64


def of_hooks() -> bool:
    return sys.gettrace() is not None


def of_level() -> bool:
    return LOG.isEnabledFor(logging.DEBUG)


def of_memory_by_another_name() -> bool:
    return USED["of the device"]() > 1 << 40


def of_signals() -> bool:
    return bool(signal.sigpending())


def of_free_memory() -> bool:
    free, total = torch.cuda.mem_get_info()
    return free / total < 0.1


def of_disk() -> bool:
    return shutil.disk_usage("/").free < 1000


def of_memory_file() -> bool:
    with open("/proc/meminfo") as file:
        (line,) = (one for one in file if one.startswith("MemAvailable"))
    return int(line.split()[1]) < 1000


def of_environment_s_number() -> bool:
    return int(os.environ.get("GRAPHDOCTOR_LEVEL", "0")) >= 3


def of_environment_by_a_table() -> bool:
    return MODES[os.environ.get("GRAPHDOCTOR_MODE", "slow")]


ASKING = [
    of_free_memory,
    of_disk,
    pytest.param(
        of_memory_file,
        marks=pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="Linux has it"),
    ),
    of_environment_s_number,
    of_environment_by_a_table,
    of_memory,
    of_load,
    of_times,
    of_nothing_left,
    of_collecting,
    of_gradients,
    of_environment,
    of_numpys_clock,
    of_address,
    of_collections,
    of_dtype,
    of_hooks,
    of_level,
    of_memory_by_another_name,
    of_signals,
]


@pytest.mark.parametrize("asked", ASKING)
def test_an_answer_that_decides_is_a_doubt(asked: Callable[[], bool]) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return LINEAR(x) * 2 if asked() else LINEAR(x)

    assert reported(step).verdict == "unknown"
    assert "GRAPHDOCTOR_MODE" not in os.environ


@pytest.mark.parametrize("asked", ASKING)
def test_an_answer_that_is_kept_and_decides_nothing_is_none(asked: Callable[[], bool]) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        KEPT.append(asked())
        return LINEAR(x)

    report = reported(step)
    assert report.verdict == "safe", report.reason


def test_a_dictionary_in_another_order_is_state() -> None:
    turning = OrderedDict((number, 0) for number in range(50))

    def step(x: torch.Tensor) -> torch.Tensor:
        turning.move_to_end(next(iter(turning)))
        return LINEAR(x) * 2 if next(iter(turning)) == 49 else LINEAR(x)

    report = reported(step)
    assert report.verdict == "unknown" and "`turning`" in report.reason
    assert list(turning) == list(range(50))


def test_a_stream_in_memory_is_state_and_put_back() -> None:
    stream = BytesIO(b"0" * 49 + b"1" * 50)

    def step(x: torch.Tensor) -> torch.Tensor:
        return LINEAR(x) * 2 if stream.read(1) == b"1" else LINEAR(x)

    assert reported(step).verdict == "unknown"
    assert stream.tell() == 0 and len(stream.getvalue()) == 99


def test_a_step_that_raises_in_a_later_call_still_has_a_report() -> None:
    calls = [0]

    def step(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] == 5:
            raise ValueError("no more data")
        return LINEAR(x)

    report = reported(step)
    assert report.verdict == "unknown" and "ValueError: no more data" in report.reason
