"""A folder of ranks on a dask cluster, of which a worker dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from graphdoctor.reporters.plain_json import written
from graphdoctor.trace.explain.folder import cluster, explain_folder
from graphdoctor.trace.explain.trace_report import TraceOptions
from graphdoctor.values.errors import UsageError
from tests.trace.test_folder import traces


def explained_by_the_second(explain: Callable[[Path], object], path: Path) -> object:
    """The first worker that reads rank 1 dies."""
    died = path.with_suffix(".died")
    if path.stem == "w1" and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return explain(path)


class Deadly(Executor):
    """The executor, with a file that ends the first process that reads it."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner

    def submit(self, explain: Any, path: Any) -> Future[Any]:  # type: ignore[override]
        return self.inner.submit(explained_by_the_second, explain, path)


def test_dask_gives_the_same_report_though_a_worker_dies(tmp_path: Path) -> None:
    from distributed import LocalCluster

    traces(tmp_path)
    options = TraceOptions(gpu="h100")
    serial = explain_folder(tmp_path, options, lambda text: None)
    with LocalCluster(2, threads_per_worker=1, processes=True, dashboard_address=None) as local:
        address = local.scheduler_address.replace("tcp://", "dask://")
        with cluster(address) as workers:
            found = explain_folder(tmp_path, options, lambda text: None, executor=Deadly(workers))
    assert (tmp_path / "w1.died").exists()
    assert written(found) == written(serial)
    assert "w2b.json" in found.failures[0]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("ray://host:1", "expected an executor such as dask://"),
        ("dask://127.0.0.1:9", "No dask scheduler answers"),
    ],
)
def test_an_executor_that_is_none_is_refused(
    wrong: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphdoctor.trace.explain.folder._ANSWERS_WITHIN_S", 0.1)
    with pytest.raises(UsageError, match=sentence), cluster(wrong):
        pass
