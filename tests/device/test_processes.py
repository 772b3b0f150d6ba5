"""A process of graphdoctor's own: what it leaves, how it ended, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from graphdoctor.device.processes.forked import run_forked
from graphdoctor.device.processes.process import Ended, fresh_processes
from graphdoctor.values.errors import GraphDoctorError

WORK = "tests.support.jobs"
ROOT = Path(__file__).parents[2]
Run = Callable[[Sequence[str], float], list[Ended]]


@pytest.fixture(autouse=True)
def _search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def forked(jobs: Sequence[str], time_limit_s: float) -> list[Ended]:
    told: list[int] = []
    encoded = [job.encode() for job in jobs]
    found = run_forked(WORK, encoded, at_once=3, time_limit_s=time_limit_s, ended=told.append)
    assert told == [*range(1, len(jobs) + 1)]
    return found


def fresh(jobs: Sequence[str], time_limit_s: float) -> list[Ended]:
    with fresh_processes(WORK) as processes:
        return [
            processes.run(job.encode(), time_limit_s=time_limit_s, is_last=job == jobs[-1])
            for job in jobs
        ]


both = pytest.mark.parametrize("run", [forked, fresh])


def is_running(pid: int) -> bool:
    """A process that ended and that nobody waited for is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


def pids_in(path: Path) -> list[int]:
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return [int(pid) for pid in path.read_text().split()]


def are_gone(pids: Sequence[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_running, pids))


@both
def test_each_job_has_its_result_or_the_way_it_ended(run: Run) -> None:
    jobs = ["say a", "exit the last words", "crash", "raise a word", "input", "say b"]
    a, left, crashed, raised, told, b = run(jobs, 60.0)
    assert a.result is not None and a.result.startswith(b"done a ")
    assert b.result is not None and b.result.startswith(b"done b ")
    assert told.result == b"nothing"
    assert (left.result, left.reason) == (None, "it ended its process with exit code 7")
    assert left.last_words == "the last words"
    assert (crashed.code, crashed.reason) == (-11, "its process was ended by SIGSEGV")
    assert next(crashed.frames())["function"] == "do"
    assert (raised.code, raised.last_words) == (1, "ValueError: a word")


def test_sets_have_one_order_in_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = set()
    for number, run in enumerate((forked, fresh)):
        monkeypatch.setenv("PYTHONHASHSEED", str(number + 1))
        answers.update(ended.result for ended in run(["say x", "say x"], 60.0))
    assert len(answers) == 1


@both
def test_a_hang_is_ended_with_all_that_it_started_and_told_where(run: Run, tmp_path: Path) -> None:
    start = time.monotonic()
    (ended,) = run([f"hang {tmp_path / 'pids'}"], 3.0)
    assert time.monotonic() - start >= 3.0
    assert (ended.result, ended.code) == (None, None)
    assert ended.reason == "it did not end within 3 s"
    assert next(ended.frames())["function"] == "do"
    assert are_gone(pids_in(tmp_path / "pids"))


@both
def test_what_a_job_leaves_running_ends_with_it(run: Run, tmp_path: Path) -> None:
    (ended,) = run([f"leave {tmp_path / 'pids'}"], 60.0)
    assert ended.result is not None
    assert are_gone(pids_in(tmp_path / "pids"))


@pytest.mark.parametrize(
    ("time_limit_s", "code", "told"), [(100.0, -11, -11), (1.0, -11, None), (1.0, 7, 7)]
)
def test_a_crash_in_the_last_second_is_an_end_of_the_time(
    time_limit_s: float, code: int, told: int | None, tmp_path: Path
) -> None:
    """Writing down the stacks of running threads can crash by itself."""
    ended = Ended.of(tmp_path, code, seconds=0.1, time_limit_s=time_limit_s)
    assert ended.code == told


def test_a_result_counts_whatever_becomes_of_the_process_after_it(tmp_path: Path) -> None:
    (tmp_path / "result").write_bytes(b"whole")
    assert Ended.of(tmp_path, None, seconds=9.0, time_limit_s=9.0).result == b"whole"


def test_a_waiting_process_leaves_when_its_input_ends() -> None:
    with fresh_processes(WORK) as processes:
        processes.start_next()
        waiting: Any = processes._next
        waiting.popen.stdin.close()
        assert waiting.popen.wait(60) == 0
        assert [path.name for path in waiting.path.iterdir()] == ["output.txt"]
        assert (waiting.path / "output.txt").read_bytes() == b""


def test_a_waiting_process_is_ended_with_its_folder_also_on_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), fresh_processes(WORK) as processes:
        processes.start_next()
        waiting: Any = processes._next
        assert waiting is not None
        processes.start_next()
        assert processes._next is waiting
        raise KeyboardInterrupt
    assert waiting.popen.poll() is not None
    assert not waiting.path.exists()


def test_work_that_cannot_be_imported_is_a_sentence() -> None:
    with pytest.raises(GraphDoctorError, match=r"failed: ModuleNotFoundError: .*no_such_work"):
        run_forked("tests.no_such_work", [b"x"], at_once=1, time_limit_s=9.0, ended=print)


@pytest.mark.parametrize("end", ["fail because", "crash x"])
def test_a_job_that_fails_ends_those_that_work_with_it_and_they_say_where_they_were(
    end: str, tmp_path: Path
) -> None:
    jobs = [f"hang {tmp_path / 'pids'}".encode(), end.encode()]
    begun_s = time.monotonic()
    hung, failed = run_forked(
        WORK, jobs, at_once=2, time_limit_s=300.0, ended=lambda n: None, together=True
    )
    assert time.monotonic() - begun_s < 100
    assert hung.in_vain
    assert hung.result is None
    assert "do" in [frame["function"] for frame in hung.frames()]
    assert not failed.in_vain
    assert failed.result == (b"because" if end.startswith("fail") else None)
    assert are_gone(pids_in(tmp_path / "pids"))


def test_the_limit_may_count_from_before_the_processes_start(tmp_path: Path) -> None:
    (hung,) = run_forked(
        WORK,
        [f"hang {tmp_path / 'pids'}".encode()],
        at_once=1,
        time_limit_s=1000.0,
        ended=lambda n: None,
        together=True,
        begun_s=time.time() - 997.0,
    )
    assert hung.code is None
    assert hung.seconds > 997
    assert "do" in [frame["function"] for frame in hung.frames()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("way", ["forked", "fresh"])
def test_nothing_is_left_when_whoever_started_it_is_ended(
    way: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Also where it is killed, and can end nothing itself."""
    code = f"import tests.device.test_processes as t; t.{way}(['hang {tmp_path / 'pids'}'], 600.0)"
    folder = tmp_path / "temporary"
    folder.mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stderr=subprocess.DEVNULL,
    )
    pids = pids_in(tmp_path / "pids")
    assert all(map(is_running, pids))
    parent.send_signal(number)
    parent.wait(60)
    assert are_gone(pids)
    assert number != signal.SIGINT or [*folder.iterdir()] == []


def test_the_stack_of_c_functions_hides_no_line_of_python() -> None:
    """As Python 3.14 writes it."""
    output = (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007f258c50b200 [python] (most recent call first):\n"
        '  File "model.py", line 4 in forward\n'
        '  File "model.py", line 9 in step\n\n'
        "Current thread's C stack trace (most recent call first):\n"
        '  Binary file "/usr/bin/python", at _Py_DumpStack+0x4a [0x49b2f9]\n'
        '  Binary file "/usr/lib/libffi.so.8", at ffi_call+0x155 [0x7f258c10ffe5]\n'
    )
    ended = Ended(None, output, -11, time_limit_s=60.0)
    assert [frame["function"] for frame in ended.frames()] == ["forward", "step"]
