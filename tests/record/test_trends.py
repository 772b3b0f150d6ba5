"""Python state over three steps tells where it will be many steps later."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import nn

from graphdoctor.record.later.trends import Trend, advance, moment, numbers_in, trends
from graphdoctor.target.state.paths import By


class Every:
    """All paths that there are."""

    def __contains__(self, path: object) -> bool:
        return True


class Held:
    """Something that code may write to."""

    shared = 1
    __slots__ = ("__dict__", "slot")


def trends_of(roots: dict[str, object], step: Callable[[], object]) -> list[Trend]:
    """How it goes on over three steps; the state stands behind the second of them then."""
    moments = [moment(roots, Every())]
    for _ in range(2):
        step()
        moments.append(moment(roots, Every()))
    return trends(*moments)


def after(steps: int, held: Any, change: Callable[[Any], object]) -> tuple[Any, Trend]:
    """What an attribute is so many steps after the first; the only one that changes."""
    state = Held()
    state.value = held  # type: ignore[attr-defined]

    def step() -> None:
        now = change(state.value)  # type: ignore[attr-defined]
        if now is not None:
            state.value = now  # type: ignore[attr-defined]

    (trend,) = trends_of({"state": state}, step)
    advance([trend], steps)
    return state.value, trend  # type: ignore[attr-defined]


class Key:
    """A key that is no plain data."""


def test_a_number_goes_on_under_any_key() -> None:
    """A text with a point in it, and objects, which are found by their place among the keys."""
    model = nn.Linear(1, 1)
    counts: dict[object, int] = {"first": 0, "loss.total": 1, Key(): 2, model: 3}
    key = list(counts)[2]

    def step() -> None:
        counts["loss.total"] += 1
        counts[key] += 10
        counts[model] += 20

    advance(trends_of({"model": model, "counts": counts}, step), 100)
    assert list(counts.values()) == [0, 101, 1002, 2003]


def test_the_second_variable_of_a_name_goes_on_as_the_first() -> None:
    spaces: list[dict[str, Any]] = [{"calls": 1}, {"calls": 5}]
    for space in spaces:
        exec("def step():\n    global calls\n    calls += 1", space)
    steps = [space["step"] for space in spaces]
    found = trends_of({"steps": steps}, lambda: [step() for step in steps])
    assert [str(trend.path) for trend in found] == ["calls", "calls#2"]
    advance(found, 100)
    assert [space["calls"] for space in spaces] == [101, 105]


@pytest.mark.parametrize(
    ("start", "change", "later"),
    [
        (5, lambda value: value + 3, 305),
        (5, lambda value: value - 3, -295),
        (0.5, lambda value: value + 0.25, 25.5),
    ],
)
def test_what_grows_by_the_same_goes_on_so(start: Any, change: Any, later: Any) -> None:
    value, _ = after(100, start, change)
    assert value == later
    assert type(value) is type(later)


@pytest.mark.parametrize(
    ("start", "change", "steps", "later"),
    [
        (0.0, lambda value: 0.5 * value + 1, 100, 2.0),  # an average comes near to what it is fed
        (8.0, lambda value: value / 2, 3, 1.0),
        (1.0, lambda value: value * 2, 5, 32.0),
        (1.0, lambda value: value * 2, 500, 2.0**60),  # as far as numbers are of any use
    ],
)
def test_what_changes_by_a_part_goes_on_so(
    start: float, change: Any, steps: int, later: float
) -> None:
    assert after(steps, start, change)[0] == pytest.approx(later)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value * 2,  # of whole numbers, this is no average
        lambda value: value**2 + 1,
        lambda value: -value,
        lambda value: True if value == 1 else 1,
        lambda value: "text",
    ],
)
def test_what_changes_in_no_known_way_has_no_trend(change: Any) -> None:
    state = {"value": 1}
    assert trends_of({"state": state}, lambda: state.update(value=change(state["value"]))) == []


def test_what_stays_has_no_trend() -> None:
    held = {"number": 1, "share": 0.5, "array": np.ones(2), "items": [1], "names": {1}}
    assert trends_of({"held": held}, lambda: None) == []


def test_an_average_that_turns_about_is_no_trend() -> None:
    state = {"value": 1.0}
    assert trends_of({"state": state}, lambda: state.update(value=-state["value"])) == []


@pytest.mark.parametrize(
    ("start", "add"), [([0, 10], [2, 0]), ([1.5, 0.0], [0.0, 0.5]), ([2**40, 1], [-1, -1])]
)
def test_an_array_goes_on_where_it_lies(start: list[float], add: list[float]) -> None:
    array = np.array(start)
    value, trend = after(10, array, lambda held: held.__iadd__(np.array(add)) is None or None)
    assert value is array
    assert value.tolist() == (np.array(start) + 10 * np.array(add)).tolist()
    at = next(place for place, each in enumerate(add) if each)
    assert (trend.now, trend.growth) == (start[at], add[at])


def test_an_array_of_which_each_step_adds_another_amount_has_no_trend() -> None:
    array = np.array([1.0, 2.0])
    assert trends_of({"held": {"array": array}}, lambda: array.__imul__(2.0)) == []


@pytest.mark.parametrize("kind", [list, deque])
@pytest.mark.parametrize(
    ("change", "later", "now", "growth"),
    [
        (lambda held: held.append(9), [1, 2, 2, 2, 2], 2, 1),
        (lambda held: held.extend([9, 9]), [1, *[2] * 7], 2, 2),
        (lambda held: held.insert(0, 9), [1, 1, 1, 1, 2], 2, 1),
    ],
)
def test_items_that_come_at_an_end_come_there_on(
    kind: Any, change: Any, later: list[int], now: int, growth: int
) -> None:
    """They are like the one at that end, which is all that is known of them."""
    value, trend = after(3, kind([1, 2]), change)
    assert type(value) is kind
    assert list(value) == later
    assert (trend.now, trend.growth, trend.end) == (now, growth, None)


@pytest.mark.parametrize("kind", [list, deque])
@pytest.mark.parametrize(
    ("pop", "one_left"),
    [(lambda held: held.pop(), "a"), (lambda held: held.__delitem__(0), "g")],
)
def test_items_that_go_are_used_up_to_what_a_step_takes(kind: Any, pop: Any, one_left: str) -> None:
    value, trend = after(4, kind("abcdefg"), lambda held: pop(held) and None)
    assert len(value) == 3
    assert (trend.now, trend.growth, trend.end) == (7, -1, 6)
    advance([trend], 1_000)
    assert list(value) == [one_left]


def test_of_several_that_go_at_once_as_many_are_left() -> None:
    value, trend = after(1, list(range(9)), lambda held: held.__delitem__(slice(-2, None)))
    assert (value, trend.end) == (list(range(7)), 4)
    advance([trend], 100)
    assert value == [0, 1]


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.insert(1, 9),
        lambda held: held.__setitem__(0, held[0] + 1) or held.append(3),
        lambda held: held.reverse(),
    ],
)
def test_items_that_change_elsewhere_have_no_trend_of_their_length(change: Any) -> None:
    held = [100, 200]
    found = trends_of({"held": {"items": held}}, lambda: change(held))
    assert [trend.path for trend in found if trend.path.by is By.MEASURE] == []


def test_what_was_empty_gives_no_item_to_go_on_with() -> None:
    held: list[int] = []
    assert trends_of({"held": {"items": held}}, lambda: held.append(1)) == []


def grown(held: Any) -> None:
    """By two keys, of which a dictionary has the next number."""
    more = [str(len(held)), f"-{len(held)}"]
    held.update(more if isinstance(held, set) else dict.fromkeys(more, len(held)))


@pytest.mark.parametrize("kind", [set, dict.fromkeys, OrderedDict.fromkeys, Counter])
def test_keys_that_come_are_equal_to_none_and_have_the_last_ones_value(kind: Any) -> None:
    """They are counted from the first step on, as the state is put back to it."""
    value, trend = after(4, kind("ab"), grown)
    assert (trend.now, trend.growth) == (2, 2)
    assert len(value) == len(set(value)) == 6 + 4 * 2  # the two steps that were taken are in it
    if not isinstance(value, set):
        assert [value[key] for key in list(value)[-8:]] == [4] * 8
        assert list(reversed(value)) == list(value)[::-1]


@pytest.mark.parametrize("kind", [set, dict.fromkeys])
def test_keys_that_go_have_no_trend(kind: Any) -> None:
    held = kind("abcde")
    pop = held.popitem if isinstance(held, dict) else held.pop
    assert trends_of({"held": {"names": held}}, pop) == []


@pytest.mark.parametrize(
    ("number", "steps"), [(20, [5]), (21, []), (10, []), (8, []), (10**6, [499_995])]
)
def test_it_is_told_after_how_many_steps_a_count_is_a_number(number: int, steps: list[int]) -> None:
    _, trend = after(1, 10, lambda value: value + 2)
    assert list(trend.until(number)) == steps


def test_of_what_is_counted_by_no_fixed_amount_no_step_is_told() -> None:
    _, trend = after(1, 0.0, lambda value: 0.5 * value + 1)
    assert (trend.now, trend.growth) == (None, None)
    assert list(trend.until(1)) == []


def a_global() -> int:
    return _COUNT


_COUNT = 0


def _count() -> None:
    global _COUNT
    _COUNT += 1


def test_it_is_put_where_code_finds_it() -> None:
    """In a slot, a class, a dictionary of any key, a list, a variable of a function."""
    state: Any = Held()
    state.slot, own, key = 0, 0, object()
    table: dict[object, int] = {"word": 0, 7: 0, key: 0}
    ordered, items, line = OrderedDict(a=0), [0, 1], deque([5, 0])

    def closure() -> int:
        return own

    def noted() -> None:
        """Has an attribute of its own."""

    noted.times = 0  # type: ignore[attr-defined]
    read = [
        lambda: state.slot, lambda: Held.shared - 1, lambda: table["word"], lambda: table[7],
        lambda: table[key], lambda: ordered["a"], lambda: items[0], lambda: line[1], closure,
        lambda: noted.times, a_global,  # type: ignore[attr-defined]
    ]  # fmt: skip

    def step() -> None:
        nonlocal own
        state.slot += 1
        Held.shared += 1
        for each in table:
            table[each] += 1
        ordered["a"] += 1
        items[0] += 1
        line[1] += 1
        own += 1
        noted.times += 1  # type: ignore[attr-defined]
        _count()

    roots: dict[str, object] = {
        "state": state, "table": table, "ordered": ordered, "items": items, "line": line,
        "closure": closure, "noted": noted, "a_global": a_global,
    }  # fmt: skip
    found = trends_of(roots, step)
    advance(found, 40)
    assert [each() for each in read] == [40] * len(read)
    Held.shared = 1


def test_what_is_gone_is_not_put_back() -> None:
    table, items, state = {"word": 0, 3: 0}, [0, 0], Held()
    state.value = 0  # type: ignore[attr-defined]

    def step() -> None:
        table["word"] += 1
        table[3] += 1
        items[1] += 1
        state.value += 1  # type: ignore[attr-defined]

    found = trends_of({"table": table, "items": items, "state": state}, step)
    table.clear()
    del items[1], state.value  # type: ignore[attr-defined]
    advance(found, 5)
    assert (table, items, vars(state)) == ({}, [0], {})


def test_numbers_of_the_state_are_those_that_a_count_may_be_compared_with() -> None:
    state = {
        "limit": 30,
        12: "by number",
        "flag": True,
        "share": 0.5,
        "last": deque([1], maxlen=77),
    }
    assert numbers_in({"state": state}) == [12, 30, 77, 1]


def test_no_more_numbers_are_taken_than_can_be_tried() -> None:
    assert len(numbers_in({"many": list(range(1_000, 1_100))})) == 64
