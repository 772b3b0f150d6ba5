"""What a clock decides is found also where it has decided otherwise before anybody set it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from graphdoctor.record.later import later_events
from graphdoctor.record.later.line_trace import LineTrace
from graphdoctor.record.later.sameness import Ran, ran
from graphdoctor.values.host_events import PythonEvent
from tests.support.builders import op, tensor

READS = PythonEvent("time.time()", kind="host-time")


def a_run(*names: str) -> Ran:
    ops = [op(f"aten.{name}.Tensor", [tensor(1, 4)], [tensor(2, 4)], line=1) for name in names]
    return ran(ops, [], [], [])


EARLY, LATE = a_run("add"), a_run("add", "mul")


@pytest.mark.parametrize(
    ("usual", "at_begin", "ahead", "finds"),
    [
        (EARLY, EARLY, EARLY, 0),
        (EARLY, EARLY, LATE, 1),
        (EARLY, LATE, LATE, 1),  # the recorded one was another step already
    ],
)
def test_a_step_that_a_clock_changes_is_found_whenever_it_does(
    monkeypatch: pytest.MonkeyPatch, usual: Ran, at_begin: Ran, ahead: Ran, finds: int
) -> None:
    def run_at(trials: object, ahead_s: int, begun_s: float) -> Iterator[Ran]:
        yield ahead if ahead_s else at_begin

    session = SimpleNamespace(from_the_start=lambda **options: nullcontext())
    trials: Any = SimpleNamespace(session=session, usual=usual)
    monkeypatch.setattr(later_events, "_lines_of_a_step", lambda session: LineTrace())
    monkeypatch.setattr(
        later_events, "_with_fast_clocks", lambda trials: (one for one in [at_begin])
    )
    monkeypatch.setattr(later_events, "_run_at", run_at)
    found = list(later_events._at_a_later_time(trials, [READS]))
    assert [event.kind for event in found] == ["clock-decision"] * finds
