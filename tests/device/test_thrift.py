"""A process that is only there for an analysis keeps what is freed, and looks for garbage less often."""

from __future__ import annotations

import gc
import subprocess
import sys
from types import ModuleType

import pytest

from graphdoctor.device.processes import thrift
from graphdoctor.device.processes.thrift import collecting_rarely
from tests.support import warm


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is glibc's")
def test_memory_that_a_run_of_the_step_frees_is_there_for_the_next_run() -> None:
    def pages(how: str) -> int:
        command = warm.command("tests.support.page_faults", how)
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    # Of 73,728 that are written to; how many are taken anew depends on what the process freed before.
    assert pages("thrifty") < 20_000 < pages("as it is")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc_trim is glibc's")
def test_freed_memory_is_given_back_before_another_process_needs_it() -> None:
    code = """
from pathlib import Path
from resource import getpagesize
from graphdoctor.device.processes.thrift import be_thrifty, give_memory_back

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize() >> 20

be_thrifty()
blocks = [bytearray(1 << 20) for _ in range(200)]
del blocks
kept = megabytes()
give_memory_back()
print(kept - megabytes())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 150


def test_thresholds_of_the_collector_are_put_back() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), collecting_rarely():
        assert gc.isenabled() and gc.get_threshold()[0] > before[0]
        raise RuntimeError
    assert gc.get_threshold() == before


@pytest.mark.parametrize("maker", ["nanobind", "builtins"])
def test_garbage_is_left_at_the_end_unless_an_extension_would_tell_of_it(
    maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension = ModuleType("extension")
    extension.__file__ = "extension.cpython-314-x86_64-linux-gnu.so"
    extension.function = type("nb_func", (), {"__module__": maker})()
    monkeypatch.setattr(sys, "modules", {"extension": extension, "no_module": object()})
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    thrift.leave_garbage()
    assert bool(frozen) == (maker == "builtins")


def test_a_collector_that_is_off_stays_off() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(0)
        with collecting_rarely():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_blocks_that_overlap_leave_the_thresholds_as_they_were_before_the_first() -> None:
    before = gc.get_threshold()
    one, other = collecting_rarely(), collecting_rarely()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert gc.get_threshold()[0] > before[0]  # the other still wants it
    other.__exit__(None, None, None)
    assert gc.get_threshold() == before
