"""Why a recorded forward pass cannot be one graph in the model's place, and which of its modules can be."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from graphdoctor.captured.obstacles import branching_paths, is_within, obstacles, written_kinds
from graphdoctor.strategies.evidence import Studied
from graphdoctor.values.finding import Finding
from graphdoctor.values.host_events import (
    ClockRead,
    DiffersByState,
    ItemTaken,
    OutsideQuery,
    PythonEvent,
    PythonStateChanged,
    WorkForThread,
)
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import (
    Iteration,
    OriginKind,
    Recording,
    StateChange,
)
from tests.support.builders import external, iteration, op, recording, tensor
from tests.support.checking import finding

WEIGHT, GIVEN, RESULT, CACHED = range(1, 5)
RUNS = op("aten.mul.Tensor", [tensor(GIVEN, 4), tensor(WEIGHT, 4)], [tensor(RESULT, 4)])
LED_TO = (external(WEIGHT, "model.weight"), external(GIVEN, "inputs[0]"))


def step(*more: Any, **changes: Any) -> Iteration:
    return replace(iteration([RUNS, *more], externals=LED_TO), **changes)


def told(made: Recording | Iteration, *findings: Finding, whole: bool = True) -> list[str]:
    made = recording(made) if isinstance(made, Iteration) else made
    diagnosis: Any = SimpleNamespace(findings=findings)
    plan: Any = SimpleNamespace(whole=whole)
    session: Any = None
    return list(obstacles(Studied(session, made, diagnosis, plan, None)))


def test_a_step_without_hazards_has_no_obstacle() -> None:
    assert told(step()) == []


def test_a_finding_is_an_obstacle_but_for_one_of_speed() -> None:
    (said,) = told(step(), finding(line=7), finding(rule="GD301"))
    assert said == "GD101 host-read (net.py:7): The host waits."
    (said,) = told(step(), finding(location=None))
    assert said == "GD101 host-read: The host waits."


def test_a_step_that_runs_nothing_on_the_gpu_has_nothing_to_capture() -> None:
    on_host = op("aten.mul.Tensor", [tensor(GIVEN, 4, device="cpu")], device="cpu")
    (said,) = told(iteration([on_host]), whole=False)
    assert "runs nothing on the GPU" in said
    assert told(recording(iteration([on_host]), step())) == []


@pytest.mark.parametrize(("findings", "is_said"), [((), True), ((finding(rule="GD301"),), False)])
def test_what_no_finding_explains_is_still_said(findings: Sequence[Finding], is_said: bool) -> None:
    said = told(step(), *findings, whole=False)
    assert said == ["the recorded iterations cannot be captured as one graph"] * is_said


def test_python_state_that_changes_is_said_once_as_it_last_changed() -> None:
    changes = [StateChange("model.steps", str(at), str(at + 1), "value") for at in (0, 1)]
    made = recording(*(step(changes=(change,)) for change in changes))
    assert told(made) == [
        "each call changes model.steps in Python (from 1 to 2), which a replay would not do"
    ]


@pytest.mark.parametrize(
    ("origin", "device", "is_said"),
    [
        ("unknown", "cuda:0", True),
        ("previous-iteration", "cuda:0", True),
        ("unknown", "cpu", False),
        ("state", "cuda:0", False),
        ("input", "cuda:0", False),
    ],
)
def test_memory_of_the_gpu_that_nobody_can_watch_is_an_obstacle(
    origin: OriginKind, device: str, is_said: bool
) -> None:
    cached = replace(
        external(CACHED, "?", device=device), origin=origin, location=Location("net.py", 9)
    )
    said = told(recording(*[step(externals=(*LED_TO, cached))] * 2))
    assert ["reached from the model (net.py:9), so" in one for one in said] == [True] * is_said


@pytest.mark.parametrize(
    ("written", "kinds"),
    [
        ([], set()),
        ([RESULT], set()),
        ([WEIGHT], {"state"}),
        ([GIVEN], {"inputs"}),
        ([GIVEN, WEIGHT, RESULT], {"inputs", "state"}),
    ],
)
def test_what_is_written_is_told_by_where_it_comes_from(
    written: list[int], kinds: set[str]
) -> None:
    made = step(op("mine.write", [tensor(GIVEN, 4)], writes=written))
    assert written_kinds(made) == kinds
    assert any("writes into its inputs" in one for one in told(recording(step(), made))) == (
        "inputs" in kinds
    )


@pytest.mark.parametrize(
    ("path", "outer", "is_inside"),
    [
        ("model.layer", "", True),
        ("model.layer", "model.layer", True),
        ("model.layer.act", "model.layer", True),
        ("model.layer2", "model.layer", False),
        ("model", "model.layer", False),
    ],
)
def test_a_module_is_within_itself_and_those_around_it(
    path: str, outer: str, is_inside: bool
) -> None:
    assert is_within(path, outer) is is_inside


def seen_on_host(kind: type[PythonEvent], before: int) -> Recording:
    """Of five operators, each in a module of its own; that of the last iteration count."""
    ops = [replace(RUNS, module=f"m{at}") for at in range(5)]
    other = [replace(RUNS, module="earlier")] * 5
    made = recording(iteration(other), iteration(ops))
    return replace(made, host=(kind("calls", before),))


@pytest.mark.parametrize(
    ("before", "around"),
    [(0, {"m0"}), (1, {"m0", "m1"}), (2, {"m1", "m2"}), (4, {"m3", "m4"}), (5, {"m4"})],
)
def test_modules_beside_a_branch_are_those_around_its_place(before: int, around: set[str]) -> None:
    assert branching_paths(seen_on_host(DiffersByState, before)) == around


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        (ItemTaken, True),
        (OutsideQuery, False),
        (WorkForThread, False),
        (ClockRead, False),
        (PythonStateChanged, False),
    ],
)
def test_only_a_branch_and_an_iterator_advanced_count(
    kind: type[PythonEvent], counts: bool
) -> None:
    assert branching_paths(seen_on_host(kind, 2)) == ({"m1", "m2"} if counts else set())
