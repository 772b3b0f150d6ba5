"""Steps that are timed on several ranks at once: equally often, each block as on the slowest, and how far apart."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, Thread, get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from graphdoctor.device.observe.meeting import Meeting
from graphdoctor.measure import speed, wall_clock
from graphdoctor.measure.speed import launch_skew
from graphdoctor.measure.wall_clock import Blocks, measure


class Threads(Meeting):
    """Threads in the place of ranks, which hear each other's answers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.ranks: dict[int, int] = {}
        self._barrier = Barrier(count, timeout=20)
        self._heard: dict[int, object] = {}

    def answers(self, mine: Any, kind: Any) -> Any:
        self._heard[self.ranks[get_ident()]] = mine
        self._barrier.wait()
        found = [self._heard[rank] for rank in sorted(self._heard)]
        self._barrier.wait()
        return found


def on_ranks(meeting: Threads, does: Callable[[int], Any], count: int) -> list[Any]:
    found: list[Any] = [None] * count

    def run(rank: int) -> None:
        meeting.ranks[get_ident()] = rank
        found[rank] = does(rank)

    threads = [Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Clock:
    """Stands still unless a step runs; counts them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = {"eager": 0, "graph": 0}

    def step(self, name: str, cost_s: float) -> Callable[[], None]:
        def call() -> None:
            self.calls[name] += 1
            self.now_s += cost_s

        return call


def test_ranks_run_both_equally_often_and_each_block_is_as_long_as_on_the_slowest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(wall_clock, "gpu_state", lambda: None)
    meeting, clocks = Threads(2), [Clock(), Clock()]

    def does(rank: int) -> Any:
        clock = clocks[rank]
        return measure(
            clock.step("eager", (300e-6, 900e-6)[rank]),
            clock.step("graph", (200e-6, 100e-6)[rank]),
            budget_s=0.5,
            clock=lambda: clock.now_s,
            blocks=Blocks(most_calls=(40, 10)[rank]),
            meeting=meeting,
        )

    first, second = on_ranks(meeting, does, 2)
    assert clocks[0].calls == clocks[1].calls
    assert first == second
    assert (first.ranks, first.calls_per_block) == (2, 9)  # as many as every rank can
    assert first.eager_us == pytest.approx(900.0)
    assert first.graph_us == pytest.approx(200.0)
    assert first.speedup == pytest.approx(4.5)


@pytest.mark.parametrize(("local", "is_told"), [("2", True), ("1", False)])
def test_launch_skew_is_how_much_later_the_last_rank_begins_where_they_share_a_clock(
    monkeypatch: pytest.MonkeyPatch, local: str, *, is_told: bool
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    begun_ns = {
        "eager": ([0, 50_000, 90_000], [8_000, 20_000, 90_000]),
        "graph": ([0, 10], [1_000, 10]),
    }
    meeting = Threads(2)

    def rank_lane(trace: Any) -> Any:
        rank = meeting.ranks[get_ident()]
        return SimpleNamespace(start_ns=np.array(begun_ns[trace][rank]))

    monkeypatch.setattr(speed, "rank_lane", rank_lane)
    found, other = on_ranks(meeting, lambda rank: launch_skew("eager", "graph", meeting), 2)  # type: ignore[arg-type]
    assert found == other
    if not is_told:
        assert found is None
        return
    assert (found.eager.collectives, found.eager.median_us) == (3, 8.0)
    assert found.eager.p95_us == 8.0
    assert (found.graph.collectives, found.graph.median_us) == (2, 0.5)


def test_ranks_whose_profilers_saw_different_collectives_have_no_skew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    meeting = Threads(2)
    lanes = ([0, 1], [0])
    monkeypatch.setattr(
        speed,
        "rank_lane",
        lambda trace: SimpleNamespace(start_ns=np.array(lanes[meeting.ranks[get_ident()]])),
    )
    assert on_ranks(meeting, lambda rank: launch_skew(None, None, meeting), 2) == [None, None]  # type: ignore[arg-type]
