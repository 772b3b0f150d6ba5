"""Where views and allocations end up, which may run anywhere between what they need and what needs them."""

from __future__ import annotations

import pytest

from graphdoctor.partition.hazards import Hazards
from graphdoctor.partition.regions import _settle_free_operators, schedule
from graphdoctor.values.recording import Op
from tests.support.builders import op, tensor


@pytest.mark.parametrize(
    ("slots", "users", "free", "settled"),
    [
        # The next neighbor's slot before the previous one's, and no slot of others.
        ([2, 0, 4], {}, 1, 4),
        ([2, 0, 4, 8], {}, 1, 4),
        ([2, 0, 3], {}, 1, 2),
        ([4, 0], {}, 1, 4),
        ([0, 5, 8], {}, 0, 0),
        ([8, 5, 0], {}, 2, 0),
        ([4, 0, 0], {}, 1, 0),
        ([3, 0, 5], {}, 1, 0),  # both run as today: it stays where it can be earliest
        # Never later than its first user, never earlier than what it needs.
        ([0, 4, 2, 6], {2, 3}, 0, 2),
        ([0, 4, 6, 2], {2, 3}, 0, 2),
        ([0, 2], {1}, 0, 2),
        ([0, 3], {1}, 0, 0),
        ([2, 4, 8], {2}, 1, 8),
        ([2, 4, 5], {2}, 1, 4),
        ([1, 1, 4], {2}, 1, 4),
        ([6, 1, 3], {2}, 1, 1),
    ],
)
def test_a_free_operator_goes_with_its_neighbors_as_far_as_its_users_allow(
    slots: list[int], users: set[int], free: int, settled: int
) -> None:
    before = [frozenset({free} if at in users else ()) for at in range(len(slots))]
    found = [*slots]
    _settle_free_operators(found, before, [at == free for at in range(len(slots))])
    assert found == [settled if at == free else slot for at, slot in enumerate(slots)]


def test_a_view_of_a_view_follows_it() -> None:
    slots = [0, 0, 4]
    before = [frozenset[int](), frozenset({0}), frozenset({1})]
    _settle_free_operators(slots, before, [True, True, False])
    assert slots == [4, 4, 4]


def kernel(storage: int, made: int) -> Op:
    return op("aten.relu.default", [tensor(storage, 4)], [tensor(made, 4)])


def test_what_comes_after_a_cut_runs_after_all_that_came_before_it() -> None:
    """The latest slot counts, wherever the operators before the cut stand in the recording."""
    ops = [kernel(0, 1), kernel(1, 2), kernel(9, 10), kernel(20, 21)]
    stands = Hazards({1: ("GD101",)}, {3: ("GD108",)}, {}, frozenset())
    found = schedule(ops, stands)
    assert found.slots == (
        0,
        1,
        0,
        2,
    )  # the third ran beside the first, and the cut comes after the second
    assert found.cuts == {3: 1}


def test_a_cut_at_the_end_comes_after_the_latest_operator() -> None:
    ops = [kernel(0, 1), kernel(1, 2), kernel(9, 10)]
    found = schedule(ops, Hazards({1: ("GD101",)}, {3: ("GD108",)}, {}, frozenset()))
    assert (found.slots, found.cuts) == ((0, 1, 0), {3: 1})


def test_after_a_value_that_decides_nothing_runs_beside_what_was_before() -> None:
    read = op("aten._local_scalar_dense.default", [tensor(1, 4)], [], tags=())
    ops = [kernel(0, 1), read, kernel(9, 10)]
    decides = Hazards({1: ("GD101",)}, {}, {}, frozenset({1}))
    free = Hazards({1: ("GD101",)}, {}, {}, frozenset())
    assert schedule(ops, decides).slots == (0, 1, 2)
    assert schedule(ops, free).slots == (0, 1, 0)


def test_what_the_host_decides_by_values_of_its_own_holds_back_only_what_comes_after() -> None:
    own = op("aten._local_scalar_dense.default", [tensor(30, 4, device="cpu")], [], device="cpu")
    ops = [kernel(0, 1), kernel(1, 2), own, kernel(9, 10)]
    found = schedule(ops, Hazards({1: ("GD101",)}, {}, {}, frozenset({2})))
    assert found.slots == (0, 1, -1, 0)
