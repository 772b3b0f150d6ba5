"""What is asked of a target's process, and what is kept of what it left."""

from __future__ import annotations

import pickle
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from graphdoctor.check import run_targets
from graphdoctor.check.cache.kept import Cache
from graphdoctor.check.cache.reads import Reads
from graphdoctor.check.relative_paths import RelativePaths
from graphdoctor.check.run_targets import Job, Result, _result, fault_of_process, job_of
from graphdoctor.check.settings.settings import TargetSettings
from graphdoctor.device.processes.process import Ended
from graphdoctor.reporters.plain_json import written
from graphdoctor.values.check import Fault
from graphdoctor.values.options import AnalyzeOptions
from tests.support.checking import project, report, target


class _Losing(Executor):
    """Does the first task here, and loses the others with its processes."""

    def __init__(self) -> None:
        self.given = 0

    def submit(self, task: Any, job: Any) -> Future[Any]:  # type: ignore[override]
        self.given += 1
        future: Future[Any] = Future()
        if self.given == 1:
            future.set_result(pickle.loads(pickle.dumps(task))(job))
        else:
            future.set_exception(BrokenExecutor())
        return future


READS = Reads((), (), (), ())


def test_a_job_has_the_target_s_settings_and_the_project_s() -> None:
    asked = TargetSettings(
        "net", "net.py", mode="training", input=("x=3",), inputs="fixed", ranks=2
    )
    where = project(Path("/models"), iterations=5, time_limit=100.0, values="none", gpu="a100")
    options = AnalyzeOptions(
        mode="training", device="emulated", iterations=5, inputs=("x=3",), gpu="a100",
        host="", strategies=(), fixed_inputs=True, values="none",
    )  # fmt: skip
    assert job_of(asked, where) == Job("/models", "net.py", options, ranks=2, time_limit_s=80.0)
    assert not job_of(target(), where).options.fixed_inputs


def ended(result: bytes | None) -> Ended:
    return Ended(result, output="", code=0, time_limit_s=300.0)


class Keeping:
    """Stands in for the cache."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def keep(self, name: str, *_: Any) -> None:
        self.kept.append(name)


@pytest.mark.parametrize(
    ("ran_on", "asked", "reads", "kept"),
    [
        ("real", "auto", READS, ["net"]),
        ("none", "auto", READS, []),  # for want of memory, which the next check may have
        ("none", "none", READS, ["net"]),
        ("real", "auto", None, []),
    ],
)
def test_a_report_is_kept_where_the_next_check_would_find_the_same(
    ran_on: str, asked: str, reads: Reads | None, kept: list[str]
) -> None:
    cache, found = Keeping(), report(values=ran_on)
    left = msgspec.json.encode(Result(report_json=written(found), reads=reads))
    where = project(values=asked)
    relative = RelativePaths(where.root)
    result = _result(ended(left), target(), where, relative, cast(Cache, cache))
    assert (result, cache.kept) == (found, kept)
    assert _result(ended(left), target(), where, relative, None) == found


def test_a_fault_is_said_without_this_machine_s_folders_and_not_kept() -> None:
    where, cache = project(), Keeping()
    fault = Fault("usage", 2, f"{where.root}/net.py is none", f"in {where.root}/net.py")
    left = msgspec.json.encode(Result(fault=fault, reads=READS))
    relative = RelativePaths(where.root)
    result = _result(ended(left), target(), where, relative, cast(Cache, cache))
    assert result == Fault("usage", 2, "net.py is none", "in net.py")
    assert cache.kept == []
    nothing = ended(None)
    assert _result(nothing, target(), where, relative, None) == fault_of_process(nothing, relative)


def test_an_executor_runs_each_target_alone_and_what_it_loses_is_done_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began: list[list[str]] = []

    def run_forked(work: str, jobs: list[bytes], **_: Any) -> list[Ended]:
        specs = [msgspec.json.decode(job, type=Job).spec for job in jobs]
        began.append(specs)
        return [ended(msgspec.json.encode(Result(fault=Fault("usage", 2, one)))) for one in specs]

    monkeypatch.setattr(run_targets, "run_forked", run_forked)
    targets = [TargetSettings(name, f"package.{name}") for name in ("one", "two", "three")]
    heard: list[tuple[int, int]] = []
    found = run_targets.run_all(
        targets, project(), lambda *told: heard.append(told), executor=_Losing()
    )
    assert [one.result for one in found] == [Fault("usage", 2, one.entry) for one in targets]
    assert began == [[one.entry] for one in targets]
    assert heard == [(1, 3), (2, 3), (3, 3)]
