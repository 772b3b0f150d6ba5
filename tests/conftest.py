"""Settings of every test run: one thread, unhurried property tests, GPU tests skipped openly."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from _pytest.assertion.rewrite import assertstate_key
from hypothesis import settings

from tests.support.browser import browser
from tests.support.touched import SECONDS

__all__ = ["browser"]

# A shell ignores SIGINT for what it starts in the background, and tests send it to processes of theirs.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Shared machines stall for longer than hypothesis' deadline of 200 ms.
settings.register_profile("graphdoctor", deadline=None, max_examples=30)
settings.load_profile("graphdoctor")


# Tests run side by side, a process each: threads of one would take the other's core. This is also
# for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a fifth of the time, tests wait for processes that hang or a browser."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (cores or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    """The package is compiled as everywhere, and not a second time with its asserts rewritten.

    pytest rewrites those of every package that has a plugin: 540 modules in each process.
    """
    config.stash[assertstate_key].hook._must_rewrite.discard("graphdoctor")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, and say so."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not _has_gpu():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and there is none"))


def pytest_collection_finish() -> None:
    """Small tensors are quicker on one thread; nobody pays for importing torch for this."""
    gc.set_threshold(20_000, *gc.get_threshold()[1:])  # tests leave little garbage
    if "torch" in sys.modules:
        from graphdoctor.device.processes.thrift import be_thrifty

        sys.modules["torch"].set_num_threads(1)
        be_thrifty()  # a page of memory that is new to the process takes as long as filling it


_seconds: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """How long a test takes, its fixtures with it: `make test-fast` goes by it."""
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Only where the reports of all processes come together."""
    cache = getattr(session.config, "cache", None)
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set(SECONDS, cache.get(SECONDS, {}) | _seconds)


_modules_looked_through = 0
_tests_looked_through = 0
_OFTEN = 10


@pytest.fixture(autouse=True)
def _what_stays_is_no_garbage() -> None:
    """Every capture collects garbage: a quarter of a second where all of torch is looked through.

    A tenth of that, where what a few hundred tests left behind is; so that is set aside now and then.
    """
    global _modules_looked_through, _tests_looked_through
    _tests_looked_through += 1
    if len(sys.modules) != _modules_looked_through or _tests_looked_through % _OFTEN == 0:
        _modules_looked_through = len(sys.modules)
        gc.collect()
        gc.freeze()


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _distributions_check_their_arguments() -> Iterator[None]:
    """As in a fresh process: torch.compile turns the checks off for good, for whatever runs later."""
    yield
    if "torch.distributions" in sys.modules:
        sys.modules["torch.distributions"].Distribution.set_default_validate_args(__debug__)
