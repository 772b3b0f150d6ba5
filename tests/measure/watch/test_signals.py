"""Signals reach graphdoctor and the program's own handler, which sees nothing of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from graphdoctor.measure.watch.watcher import SharedSignals

USR1, TERM = signal.SIGUSR1, signal.SIGTERM


@pytest.fixture
def heard() -> list[int]:
    return []


@pytest.fixture
def shared(heard: list[int]) -> Iterator[SharedSignals]:
    before = {number: signal.getsignal(number) for number in (USR1, TERM)}
    shared = SharedSignals(
        {USR1: lambda: heard.append(USR1), TERM: lambda: heard.append(TERM)},
        ends=frozenset({TERM}),
    )
    with shared.on():
        yield shared
    assert {number: signal.getsignal(number) for number in (USR1, TERM)} == before


def test_a_program_without_a_handler_goes_on(shared: SharedSignals, heard: list[int]) -> None:
    os.kill(os.getpid(), USR1)
    assert heard == [USR1]
    assert signal.getsignal(USR1) == signal.SIG_DFL


def test_the_program_s_handler_is_called_and_answered_for(
    shared: SharedSignals, heard: list[int]
) -> None:
    got: list[int] = []
    own = lambda number, frame: got.append(number)  # noqa: E731
    assert signal.signal(USR1, own) == signal.SIG_DFL
    assert signal.getsignal(USR1) is own
    os.kill(os.getpid(), USR1)
    assert (heard, got) == ([USR1], [USR1])
    assert signal.signal(USR1, signal.SIG_IGN) is own
    os.kill(os.getpid(), USR1)
    assert (heard, got) == ([USR1, USR1], [USR1])
    signal.signal(USR1, signal.SIG_DFL)


def test_a_handler_that_was_there_before_is_kept(heard: list[int]) -> None:
    got: list[int] = []
    own = lambda number, frame: got.append(number)  # noqa: E731
    before = signal.signal(USR1, own)
    try:
        with SharedSignals({USR1: lambda: heard.append(USR1)}).on():
            os.kill(os.getpid(), USR1)
            assert signal.getsignal(USR1) is own
        assert signal.getsignal(USR1) is own
        os.kill(os.getpid(), USR1)
    finally:
        signal.signal(USR1, before)
    assert (heard, got) == ([USR1], [USR1, USR1])


def test_asyncio_s_handlers_are_called(shared: SharedSignals, heard: list[int]) -> None:
    async def serve() -> None:
        called = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(USR1, called.set)
        os.kill(os.getpid(), USR1)
        await asyncio.wait_for(called.wait(), 60)

    asyncio.run(serve())
    assert heard == [USR1]


def test_a_program_that_handles_its_end_is_not_spoken_for(
    shared: SharedSignals, heard: list[int]
) -> None:
    got: list[int] = []
    signal.signal(TERM, lambda number, frame: got.append(number))
    os.kill(os.getpid(), TERM)
    signal.signal(TERM, signal.SIG_IGN)
    os.kill(os.getpid(), TERM)
    signal.signal(TERM, signal.SIG_DFL)
    assert (heard, got) == ([], [TERM])


def test_other_signals_and_wrong_handlers_are_python_s_matter(shared: SharedSignals) -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
    signal.signal(signal.SIGUSR2, before)
    with pytest.raises(TypeError):
        signal.signal(USR1, "no handler")  # type: ignore[arg-type]


def test_a_program_that_is_ended_has_python_s_exit_status_after_a_last_word() -> None:
    code = """
import os, signal, time
from graphdoctor.measure.watch.watcher import SharedSignals
with SharedSignals({signal.SIGTERM: lambda: print("last word", flush=True)},
                   frozenset({signal.SIGTERM})).on():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "last word\n")
