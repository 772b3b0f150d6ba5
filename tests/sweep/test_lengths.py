"""Which sizes to capture for a log of sizes: the cheapest ones, beside what is usual."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from graphdoctor.sweep import lengths as lengths_module
from graphdoctor.sweep.lengths import (
    of_vllm,
    plan_lengths,
    powers_of_two,
    read_lengths,
    sizes_to_sweep,
)
from graphdoctor.values.errors import UsageError
from graphdoctor.values.figures import Range
from graphdoctor.values.sweep import LengthPlan, SweepRow


def row(batch: int, eager_us: float, graph_us: float | None) -> SweepRow:
    def exactly(value: float) -> Range:
        return Range(value, value, value)

    graph = None if graph_us is None else exactly(graph_us)
    return SweepRow(batch, "predicted", eager_us=exactly(eager_us), graph_us=graph)


# A graph takes 1 us a row, beyond 10 us; eager 100 us, and as long as a graph from 100 rows on.
ROWS = [row(1, 100.0, 11.0), row(90, 100.0, 100.0), row(200, 210.0, 210.0)]


def planned(log: Counter[int], most: int, rows: list[SweepRow] = ROWS) -> LengthPlan:
    found = plan_lengths(log, rows, most_graphs=most)
    assert found is not None
    return found


def cost_us(log: Counter[int], sizes: tuple[int, ...]) -> float:
    """By the book: each call takes the smallest size that it fits into, or runs eagerly."""
    total = 0.0
    for length, calls in log.items():
        fitting = [size for size in sizes if size >= length]
        eager = 100.0 if length <= 90 else length + 10.0
        total += calls * (min(fitting) + 10.0 if fitting else eager)
    return total / log.total()


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_no_other_choice_of_as_many_sizes_takes_less_time(most: int) -> None:
    log = Counter({3: 50, 4: 20, 9: 31, 17: 40, 33: 5, 60: 12, 88: 2})
    found = planned(log, most)
    least = min(
        cost_us(log, sizes)
        for count in range(1, most + 1)
        for sizes in combinations(sorted(log), count)
    )
    assert found.chosen.mean_us == pytest.approx(least)
    assert cost_us(log, found.chosen.sizes) == pytest.approx(least)
    assert len(found.chosen.sizes) <= most
    assert sum(found.chosen.calls) + found.chosen.eager_calls == log.total()


def test_few_long_calls_stay_eager_where_a_graph_is_needed_more_for_short_ones() -> None:
    found = planned(Counter({2: 1000, 8: 1000, 150: 1}), 2)
    assert found.chosen.sizes == (2, 8)
    assert found.chosen.calls == (1000, 1000)
    assert found.chosen.eager_calls == 1


def test_more_graphs_never_cost_more_and_one_for_each_size_is_the_least() -> None:
    log = Counter({size: 100 - size for size in range(1, 60)})
    means = [planned(log, most).chosen.mean_us for most in (1, 2, 4, 8, 16)]
    assert means == sorted(means, reverse=True)
    found = planned(log, 59)
    assert found.chosen.mean_us == pytest.approx(found.exact_us)
    assert found.chosen.padding == pytest.approx(0.0)
    assert found.exact_us < found.eager_us


def test_beside_usual_sizes_the_chosen_ones_waste_less_with_as_many_graphs() -> None:
    log = Counter({size: 1 + size % 7 for size in range(1, 90)})
    found = planned(log, 4)
    for usual, chosen in zip(found.beside[::2], found.beside[1::2], strict=True):
        assert usual.name in ("powers of two", "vLLM's default")
        assert len(chosen.sizes) <= len(usual.sizes)
        assert chosen.mean_us <= usual.mean_us
        assert chosen.padding <= usual.padding


def test_padding_is_the_share_of_rows_that_nobody_asked_for() -> None:
    found = planned(Counter({3: 1, 4: 1}), 1)
    assert found.chosen.sizes == (4,)
    assert found.chosen.padding == pytest.approx(1 / 8)


def test_usual_sizes_end_where_the_longest_call_fits() -> None:
    assert powers_of_two(1) == [1]
    assert powers_of_two(9) == [1, 2, 4, 8, 16]
    assert of_vllm(9) == [1, 2, 4, 8, 16]
    assert of_vllm(300)[-3:] == [272, 288, 304]
    assert of_vllm(4000)[-1] == 512


def test_times_go_on_beyond_the_largest_size_that_was_swept() -> None:
    found = planned(Counter({400: 1}), 1)
    assert found.chosen.mean_us == pytest.approx(410.0)
    alone = planned(Counter({400: 1}), 1, [row(1, 100.0, 11.0)])
    assert alone.chosen.mean_us == pytest.approx(11.0)


def test_without_a_size_that_could_be_captured_there_is_no_plan() -> None:
    assert plan_lengths(Counter({4: 1}), [row(4, 100.0, None)], most_graphs=8) is None


def test_more_sizes_than_are_weighed_are_served_by_the_next_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lengths_module, "MOST_SIZES", 10)
    slow = [row(1, 1000.0, 11.0), row(90, 1000.0, 100.0)]
    found = planned(Counter(range(1, 90)), 4, slow)
    assert found.chosen.eager_calls == 0
    assert sum(found.chosen.calls) == 89


def test_a_log_has_one_size_a_line(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("3\n\n 3 \n12\n")
    assert read_lengths(str(log)) == Counter({3: 2, 12: 1})


@pytest.mark.parametrize("text", ["3\nfour\n", "3\n0\n", "3\n-1\n", "3\n2.5\n", "3\n3,4\n"])
def test_a_line_that_is_no_size_is_named(tmp_path: Path, text: str) -> None:
    log = tmp_path / "log.txt"
    log.write_text(text)
    with pytest.raises(UsageError, match=r"Line 2 of .*log\.txt is no size"):
        read_lengths(str(log))


def test_a_log_without_a_size_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    with pytest.raises(UsageError, match="is empty"):
        read_lengths(str(empty))
    with pytest.raises(UsageError, match="cannot be read"):
        read_lengths(str(tmp_path / "none.txt"))


def test_the_sizes_to_sweep_reach_from_the_shortest_to_the_longest() -> None:
    assert sizes_to_sweep(Counter({4: 9})) == (4,)
    found = sizes_to_sweep(Counter({1: 9, 512: 1}))
    assert (found[0], found[-1], len(found)) == (1, 512, 8)


def test_the_page_says_what_the_published_logs_waste(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(str(root / "benchmarks" / "truth"))
    waste: Any = importlib.import_module("padding_waste")
    log = json.loads(waste.LOGS.read_text(encoding="utf-8"))["Azure, code"]
    first, second = Counter(dict(log["first_half"])), Counter(dict(log["second_half"]))
    line = waste._line(
        "Azure, code, up to 512",
        waste._up_to(first, 512),
        waste._up_to(second, 512),
        "powers of two",
        powers_of_two(512),
    )
    assert line in (root / "docs" / "sweep.md").read_text(encoding="utf-8").splitlines()
