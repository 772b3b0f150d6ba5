"""A log, an operator or a container of the user's own may change what later steps compute, so it stays a doubt."""

from __future__ import annotations

import collections
import functools
import io
import json
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)
LOG = logging.getLogger(__name__)
STOP, THERE = Path(__file__).parent / "STOP", Path(__file__)
FACTOR = types.SimpleNamespace(of=1)


def stopped() -> bool:
    return STOP.exists()


def changes(*args: object, **kwargs: object) -> Any:
    FACTOR.of = 2


class Own:
    """Whatever is done to it changes the factor."""

    get = mean = info = write = __eq__ = __getitem__ = changes
    __hash__ = object.__hash__

    def __str__(self) -> str:
        changes()
        return ""

    __repr__ = __str__

    def __bool__(self) -> bool:
        changes()
        return False

    def __iter__(self) -> Iterator[int]:
        changes()
        return iter(())

    def open(self) -> Own:
        return self

    def __enter__(self) -> Own:
        return self

    def __exit__(self, *args: object) -> bool:
        return True


class Stored:
    def __init__(self) -> None:
        self.__dict__["value"] = 1

    @property
    def value(self) -> object:
        return changes()

    @value.setter
    def value(self, value: int) -> None: ...


class OwnWarning(UserWarning):
    def __init__(self, *args: object) -> None:
        changes()


def makes() -> Own:
    return OWN


@functools.wraps(json.dumps)
def wraps(value: object) -> object:
    return changes()


OWN, STORED = Own(), Stored()
TABLE: dict[str, Any] = {"own": OWN}
GROWING: dict[object, int] = collections.defaultdict(int)
MODULES = {"linear": LINEAR}
GLOBAL_LOG: Any = LOG


def rebinds() -> None:
    global GLOBAL_LOG
    GLOBAL_LOG = OWN


class Block(nn.Module):
    def __init__(self, log: Any) -> None:
        super().__init__()
        self.log = log

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if stopped():
            self.log.info("stopped")
        return x * FACTOR.of


BLOCKS = nn.Sequential(Block(LOG), Block(OWN))

# Each runs where it is known whether to stop, in a step that goes on with `FACTOR`.
BODIES = {
    "str": 'if stopped(): LOG.warning("%s", OWN)',
    "format": 'if stopped(): LOG.info(f"{OWN}")',
    "method of a text": 'if stopped(): LOG.info("{}".format(OWN))',
    "comparison": 'LOG.info("%s", stopped() and 1 == OWN)',
    "truth": 'if stopped() and OWN: LOG.info("x")',
    "iteration": 'if stopped(): LOG.warning("%s", list(OWN))',
    "item": 'if stopped(): LOG.warning("%s", OWN["k"])',
    "keyword": 'if stopped(): print("x", end=OWN)',
    "in a container": 'if stopped(): LOG.warning("%s", TABLE)',
    "method of an item": 'if stopped(): LOG.info("%s", TABLE["own"].mean())',
    "either": 'held = OWN if stopped() else {}\nLOG.warning("%s", held.get("x"))',
    "of a table": 'LOG.warning("%s", ({}, OWN)[stopped()].get("x"))',
    "wrapper": 'if stopped(): LOG.info("%s", wraps(1))',
    "property": 'if stopped(): LOG.info("%s", STORED.value)',
    "loop of logs": 'for log in (LOG, OWN):\n    if stopped(): log.info("x")',
    "rebound": 'log = LOG\nflag = stopped()\nlog = OWN\nif flag: log.info("x")',
    "made later": 'flag = stopped()\nheld = makes()\nif flag: LOG.warning("%s", held)',
    "put in": 'held = []\nflag = stopped()\nheld.append(OWN)\nif flag: LOG.warning("%s", held)',
    "warning": 'if stopped(): warnings.warn("x", OwnWarning)',
    "module": 'if stopped(): LOG.info("%s", MODULES["linear"].cpu())',
    "swallowed": "FACTOR.of = 1\nwith OWN.open():\n    LOG.info(THERE.read_text())\n    FACTOR.of = 2",
    "finally": "FACTOR.of = 1\ntry:\n    LOG.info(STOP.read_text())\n    FACTOR.of = 2\n"
    "finally:\n    return LINEAR(x) * FACTOR.of",
}


def written(body: str, folder: Path) -> Callable[..., object]:
    """A step with that body, in a file, since only what lies in one can be read."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    file = folder / "written.py"
    file.write_text(f"def step(x):\n{lines}\n    return LINEAR(x) * FACTOR.of\n")
    space = dict(globals())
    exec(compile(file.read_text(), str(file), "exec"), space)
    return space["step"]  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    FACTOR.of = 1
    GROWING.clear()
    yield


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_what_the_users_own_may_do_stays_a_doubt(body: str, tmp_path: Path) -> None:
    assert reported(written(body, tmp_path)).verdict == "unknown"


# What comes of each was tried: a text that nobody asks for, a table that nobody reads, what each step does anyway.
HARMLESS = {
    "plain values": 'flag = stopped()\ny = LINEAR(x)\nif flag: LOG.info(f"{y.mean().item():.3f} {x}")',
    "not shown": 'if stopped(): LOG.info("%s", OWN)',
    "default": 'if stopped(): LOG.warning("%s", GROWING["k"])',
    "unless": 'flag = stopped()\nheld = OWN\nif flag: held = None\nif held: held.get("x")',
}


@pytest.mark.parametrize("body", HARMLESS.values(), ids=HARMLESS)
def test_an_answer_that_is_logged_and_changes_nothing_is_no_doubt(
    body: str, tmp_path: Path
) -> None:
    report = reported(written(body, tmp_path))
    assert report.verdict == "safe", report.reason


def test_each_instance_of_a_block_has_a_log_of_its_own() -> None:
    assert reported(lambda x: BLOCKS(x)).verdict == "unknown"


def asks_before_it_is_rebound(x: torch.Tensor) -> torch.Tensor:
    flag = stopped()
    rebinds()
    if flag:
        GLOBAL_LOG.info("stopped")
    return LINEAR(x) * FACTOR.of


def test_a_global_that_is_rebound_elsewhere_is_a_doubt() -> None:
    assert reported(asks_before_it_is_rebound).verdict == "unknown"


def reads() -> str:
    FACTOR.of = 1
    text = THERE.read_text()
    FACTOR.of = 2
    return text


def catches_what_it_reads(x: torch.Tensor) -> torch.Tensor:
    try:
        text = reads()
    except OSError:
        text = ""
    LOG.info("%s", text)
    return LINEAR(x) * FACTOR.of


def test_a_function_that_may_stop_halfway_is_a_doubt() -> None:
    assert reported(catches_what_it_reads).verdict == "unknown"


def warns(x: torch.Tensor) -> torch.Tensor:
    if stopped():
        warnings.warn("stopped", stacklevel=1)
    return LINEAR(x) * FACTOR.of


def prints(x: torch.Tensor) -> torch.Tensor:
    if stopped():
        print("stopped")
    return LINEAR(x) * FACTOR.of


def logs(x: torch.Tensor) -> torch.Tensor:
    if stopped():
        LOG.warning("stopped")
    return LINEAR(x) * FACTOR.of


def test_a_hook_of_warnings_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "showwarning", changes)
    assert reported(warns).verdict == "unknown"


def test_what_is_printed_to_the_users_own_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", OWN)
    verdict = reported(prints).verdict
    monkeypatch.undo()
    assert verdict == "unknown"


def test_records_that_the_user_makes_are_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_logRecordFactory", changes)
    assert reported(logs).verdict == "unknown"


def test_a_logger_whose_method_was_replaced_is_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOG, "warning", changes)
    assert reported(logs).verdict == "unknown"


def _replaced() -> logging.Handler:
    handler = logging.NullHandler()
    handler.handle = changes  # type: ignore[method-assign]
    return handler


def _filtering() -> logging.Handler:
    handler = logging.NullHandler()
    handler.addFilter(functools.partial(changes, 2))
    return handler


@pytest.mark.parametrize(
    "make",
    [_replaced, _filtering, lambda: logging.StreamHandler(io.StringIO()), lambda: MemoryHandler(1)],
    ids=["replaced", "filtering", "in memory", "kept"],
)
def test_a_handler_that_does_more_than_to_write_is_a_doubt(
    make: Callable[[], logging.Handler],
) -> None:
    handler = make()
    LOG.addHandler(handler)
    try:
        assert reported(logs).verdict == "unknown"
    finally:
        LOG.removeHandler(handler)
