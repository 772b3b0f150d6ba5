"""Where views and allocations end up, which may run anywhere between what they need and what needs them."""

from __future__ import annotations

import pytest

from graphdoctor.partition.schedule import _settle_free_operators


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
