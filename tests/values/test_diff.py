"""When a change did nothing to a target."""

from __future__ import annotations

import pytest

from graphdoctor.values.check import FigureChange, RegionChange, TargetChange
from graphdoctor.values.report import Verdict
from tests.support.checking import finding


@pytest.mark.parametrize("verdict", ["safe", "unsafe", None])
def test_the_same_verdict_and_nothing_else_to_say_is_the_same(verdict: Verdict | None) -> None:
    assert TargetChange("net", verdict, verdict).is_same


@pytest.mark.parametrize(
    "change",
    [
        TargetChange("net", "safe", "unsafe"),
        TargetChange("net", None, "safe"),
        TargetChange("net", "unsafe", "unsafe", new=(finding(),)),
        TargetChange("net", "unsafe", "unsafe", gone=(finding(),)),
        TargetChange("net", "safe", "safe", regions=(RegionChange("lost", "A"),)),
        TargetChange("net", "safe", "safe", figures=(FigureChange("syncs", "1", "2", False),)),
    ],
)
def test_whatever_changed_is_a_change(change: TargetChange) -> None:
    assert not change.is_same
