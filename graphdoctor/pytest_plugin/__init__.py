"""The pytest plugin: the marker `graph_safe`, the fixture `graphdoctor`, three options.

It is loaded in every run of pytest in its environment, so it imports what it needs when a test
asks for it, and not before.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from graphdoctor.pytest_plugin.checker import Checker
    from graphdoctor.pytest_plugin.session import Session

MARKER = "graph_safe"
FIXTURE = "graphdoctor"
_SESSION: pytest.StashKey[Session] = pytest.StashKey()
_CHECKER: pytest.StashKey[Checker] = pytest.StashKey()
_WRONG: pytest.StashKey[bool] = pytest.StashKey()
_HELP = (
    f"{MARKER}(allow=[], expect=[], min_coverage=None, max_syncs=None, max_launches=None, max_graphs=None,"
    " min_speedup=None, mode=None, ranks=1): the test calls graphdoctor.check(), which fails on a hazard"
    " that is not allowed and beyond these limits, and where one that is expected is gone"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("graphdoctor", "graph safety")
    group.addoption(
        "--graphdoctor-device",
        choices=("emulated", "cuda", "auto"),
        default=None,
        help="where models are checked (default: emulated, or what the settings say)",
    )
    group.addoption(
        "--graphdoctor-update",
        action="store_true",
        help="accept what the tests find into the baseline instead of failing",
    )
    group.addoption(
        "--graphdoctor-report",
        action="append",
        default=[],
        metavar="FORMAT=FILE",
        help="write what all tests found, in a format of `graphdoctor check`; may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _HELP)
    if config.getoption("--graphdoctor-report"):
        _session(config).check_reports()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A marker that says nothing sensible fails its own test, also where a failure is expected."""
    if item.get_closest_marker(MARKER) is None:
        return
    from graphdoctor.pytest_plugin.limits import check_markers
    from graphdoctor.values.errors import UsageError

    wrong = ""
    try:
        check_markers(item, fixture=FIXTURE)
    except UsageError as error:
        wrong = str(error)
    if wrong:
        item.stash[_WRONG] = True
        pytest.fail(f"graphdoctor: {wrong}", pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """An expected failure (xfail) is one of the model, not of the marker that is misspelt."""
    report = yield
    if item.stash.get(_WRONG, False) and hasattr(report, "wasxfail"):
        del report.wasxfail
        report.outcome = "failed"
    return report


@pytest.fixture
def graphdoctor(request: pytest.FixtureRequest) -> Iterator[Checker]:
    """Checks models: `check(model, *inputs)`, `watch()`, and the last `report`.

    Random generators are seeded for the test, so that the same commit gives the same result.
    Where models are checked on the emulated device, the test and the fixtures after this one run
    on it too, so that their `.cuda()` works without a GPU.
    """
    from graphdoctor.pytest_plugin.checker import Checker, on_the_device, seeded

    checker = Checker(request.node, _session(request.config))
    request.node.stash[_CHECKER] = checker
    with seeded(), on_the_device(checker):
        yield checker


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """A test that promises a check and makes none must not pass."""
    result = yield
    checker = pyfuncitem.stash.get(_CHECKER, None)
    if checker is not None and not checker.reports and pyfuncitem.get_closest_marker(MARKER):
        pytest.fail(f"marked {MARKER}, but it never called graphdoctor.check()", pytrace=False)
    if checker is not None and checker.missing():
        pytest.fail(checker.missing(), pytrace=False)
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """With pytest-xdist: what a worker found reaches the process that writes."""
    found = getattr(node, "workeroutput", {}).get(FIXTURE)
    if found:
        _session(node.config).take(found)


def pytest_sessionfinish(session: pytest.Session) -> None:
    known = session.config.stash.get(_SESSION, None)
    if known is None:
        return
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[FIXTURE] = known.packed()
    else:
        known.finish()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    known = config.stash.get(_SESSION, None)
    if known is not None and known.written:
        terminalreporter.section("graphdoctor")
        for line in known.written:
            terminalreporter.line(line)


def _session(config: pytest.Config) -> Session:
    """Made by the first test that needs it."""
    if _SESSION not in config.stash:
        from graphdoctor.pytest_plugin.session import Session

        config.stash[_SESSION] = Session(config)
    return config.stash[_SESSION]
