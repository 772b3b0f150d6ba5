"""What decides in a later step, wherever it is kept: in the state, in the process, outside of it."""

from __future__ import annotations

import collections
import os
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.target.program.quiet import quiet
from graphdoctor.target.state.snapshot import snapshot
from graphdoctor.values.report import Report
from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)


def decided_by(advance: Callable[[], object], decides: Callable[[], object]) -> Report:
    """Of a step that moves something on, and computes something else where that has come to something."""

    def step(x: torch.Tensor) -> torch.Tensor:
        advance()
        y = LINEAR(x)
        if decides():
            y = y * 2
        return y

    return reported(step)


Pair = collections.namedtuple("Pair", "count other")
HELD = {"pair": Pair(0, 0), "power": 20}


def add_to_pair() -> None:
    pair: Any = HELD["pair"]
    HELD["pair"] = pair._replace(count=pair.count + 1)


def double() -> None:
    HELD["power"] += 1  # type: ignore[operator]


KEPT: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "named tuple": (add_to_pair, lambda: HELD["pair"].count == 40),  # type: ignore[attr-defined]
    "a power of two": (double, lambda: HELD["power"] & (HELD["power"] - 1) == 0),  # type: ignore[operator]
}


@pytest.mark.parametrize("name", KEPT)
def test_state_is_seen_and_decides(name: str) -> None:
    assert "GD217" in {finding.rule for finding in decided_by(*KEPT[name]).findings}


def test_a_step_that_ends_the_program_later_is_found_and_ends_no_analysis() -> None:
    counted = types.SimpleNamespace(n=0)

    def rest() -> int:
        return counted.n % 100  # type: ignore[no-any-return]

    def step(x: torch.Tensor) -> torch.Tensor:
        counted.n += 1
        if not rest():
            raise SystemExit
        return LINEAR(x)

    report = reported(step)
    (finding,) = report.findings
    assert (report.verdict, finding.rule) == ("unsafe", "GD217")
    assert "`if not rest():` differs after 97 more steps" in finding.message


def test_what_a_trial_shows_is_seen_by_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    bar = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  (a progress bar holds it for long)
    with quiet():
        print("10 %", file=bar)
        os.write(1, b"from C")
    print("after")
    assert capfd.readouterr() == ("after\n", "")


def test_what_the_process_has_switched_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    start = snapshot({"step": lambda: None})
    os.environ["GRAPHDOCTOR_LEFT"] = "1"
    torch.set_default_dtype(torch.float64)
    start.restore()
    assert "GRAPHDOCTOR_LEFT" not in os.environ
    assert torch.get_default_dtype() is torch.float32
