"""What a step asks the world outside it, also where an object keeps the answer, and what is only held is not asked."""

from __future__ import annotations

import configparser
import copy
import csv
import importlib
import io
import multiprocessing
import os
import select
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.record.host.outside import Asking
from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)


def reads_settings(folder: Path) -> Callable[[], bool]:
    file = folder / "settings.ini"
    file.write_text("[model]\ndouble = no\n")

    def asks() -> bool:
        settings = configparser.ConfigParser()
        settings.read(file)
        return settings.getboolean("model", "double")

    return asks


def reads_a_module_anew(folder: Path) -> Callable[[], bool]:
    (folder / "live_settings.py").write_text("DOUBLE = False\n")
    module = importlib.import_module("live_settings")

    def asks() -> bool:
        importlib.reload(module)
        return bool(module.DOUBLE)

    return asks


def of_a_thread(folder: Path) -> Callable[[], bool]:
    return threading.current_thread().is_alive


def of_work(folder: Path) -> Callable[[], bool]:
    return Future[None]().done


def of_a_lock(folder: Path) -> Callable[[], bool]:
    lock = threading.Lock()

    def asks() -> bool:
        if is_free := lock.acquire(blocking=False):
            lock.release()
        return not is_free

    return asks


def of_a_process(folder: Path) -> Callable[[], bool]:
    return multiprocessing.Event().is_set


def of_shared_memory(folder: Path) -> Callable[[], bool]:
    shared = multiprocessing.Value("i", 0)
    return lambda: bool(shared.value)


def of_a_connection(folder: Path) -> Callable[[], bool]:
    one, other = multiprocessing.Pipe()
    return lambda: other is None or one.poll()


def of_descriptors(folder: Path) -> Callable[[], bool]:
    waiting = select.poll()
    return lambda: bool(waiting.poll(0))


@pytest.mark.parametrize(
    "make",
    [
        reads_settings,
        reads_a_module_anew,
        of_a_thread,
        of_work,
        of_a_lock,
        of_a_process,
        of_shared_memory,
        of_a_connection,
        of_descriptors,
    ],
)
def test_what_may_be_answered_otherwise_is_a_doubt(
    make: Callable[[Path], Callable[[], bool]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    asks = make(tmp_path)
    report = reported(lambda x: LINEAR(x) * 2 if asks() else LINEAR(x))
    assert report.verdict == "unknown" and "asks what lies outside it" in report.reason
    sys.modules.pop("live_settings", None)


async def counting() -> AsyncIterator[float]:
    while True:
        yield 1.0


def of_file(folder: Path) -> Iterator[Any]:
    (folder / "rows.txt").write_text("1.0\n" * 9000)
    return (folder / "rows.txt").open()


def of_csv(folder: Path) -> Iterator[Any]:
    return csv.reader(of_file(folder))


def of_table(folder: Path) -> Iterator[Any]:
    rows = sqlite3.connect(":memory:")
    rows.execute("create table numbers(one)")
    rows.executemany("insert into numbers values (?)", [(1.0,)] * 900)
    return rows.execute("select one from numbers")


@pytest.mark.parametrize("make", [of_file, of_csv, of_table])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_rows_that_a_loop_takes_are_a_doubt(
    make: Callable[[Path], Iterator[Any]], tmp_path: Path
) -> None:
    rows = make(tmp_path)

    def step(x: torch.Tensor) -> torch.Tensor:
        for row in rows:
            return LINEAR(x) * float(row if isinstance(row, str) else row[0])
        return x

    report = reported(step)
    assert report.verdict == "unknown" and "takes the next item of" in report.reason


def test_what_an_asynchronous_generator_gives_is_a_doubt() -> None:
    numbers = counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        try:
            numbers.__anext__().__await__().send(None)  # type: ignore[attr-defined]
        except StopIteration as item:
            return LINEAR(x) * item.value  # type: ignore[no-any-return]
        return x

    report = reported(step)
    assert report.verdict == "unknown" and "takes the next item of" in report.reason


def test_a_file_that_is_only_held_or_written_to_is_none(tmp_path: Path) -> None:
    with of_file(tmp_path) as held, open(os.devnull, "w") as log:  # type: ignore[attr-defined]

        def step(x: torch.Tensor) -> torch.Tensor:
            log.write("step\n")
            return LINEAR(x) if held is not None else x

        report = reported(step)
    assert report.verdict == "safe", report.reason


def test_a_file_is_asked_for_what_it_reads_and_a_stream_in_memory_is_not(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1\n")
    asked: list[str] = []
    asking = Asking(lambda name, answer, frame: asked.append(name))
    with open(tmp_path / "rows") as file:
        for stream in (io.StringIO("1\n"), io.BytesIO(b"1\n"), file):
            asking.built_in_called(stream.readline, sys._getframe())
    assert asked == ["readline() of an open file"]


def test_a_lock_between_processes_that_is_waited_for_is_no_question() -> None:
    lock = multiprocessing.RLock()

    def step(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return LINEAR(x)  # type: ignore[no-any-return]

    report = reported(step)
    assert report.verdict == "safe", report.reason


class Log:
    """A log of the user's own."""

    def __init__(self) -> None:
        self.lines, self.is_full = 0, False

    def info(self, text: str) -> None:
        self.lines += 1
        self.is_full = self.lines == 300
        print(text)


@pytest.mark.parametrize("stops", [False, True])
def test_yes_or_no_for_a_log_of_the_users_own_is_tried(tmp_path: Path, stops: bool) -> None:
    log = Log()

    def step(x: torch.Tensor) -> torch.Tensor:
        if stops and log.is_full:
            return x
        if (tmp_path / "STOP").exists():
            log.info("stop was asked for")
        return LINEAR(x)

    assert reported(step).verdict == ("unknown" if stops else "safe")


def test_where_things_lie_is_asked_by_the_users_code_and_not_by_pythons_own() -> None:
    asked: list[str] = []
    asking = Asking(lambda name, answer, frame: asked.append(name))

    def heard(frame: FrameType, event: str, arg: object) -> None:
        if event == "c_call":
            asking.built_in_called(arg, frame)

    sys.setprofile(heard)
    try:
        copy.deepcopy([[], {}])
        assert not asked
        id(LINEAR)
    finally:
        sys.setprofile(None)
    assert asked == ["id()"]
