"""A process that is only there for an analysis keeps what is freed, and looks for garbage less often."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from graphdoctor.device.processes.thrift import collecting_rarely

_FAULTS = """
import resource, sys
from graphdoctor.device.processes.thrift import be_thrifty
if sys.argv[1] == "thrifty":
    be_thrifty()
import torch
torch.set_num_threads(1)
x = torch.ones(2 << 20)

def step():
    return [x + number for number in range(12)] and None

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_memory_that_a_run_of_the_step_frees_is_there_for_the_next_run() -> None:
    def pages(how: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert pages("thrifty") * 3 < pages("as it is")  # of 245,760 that are written to


def test_thresholds_of_the_collector_are_put_back() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), collecting_rarely():
        assert gc.isenabled() and gc.get_threshold()[0] > before[0]
        raise RuntimeError
    assert gc.get_threshold() == before


def test_a_collector_that_is_off_stays_off() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(0)
        with collecting_rarely():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
