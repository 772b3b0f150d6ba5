"""The collectives of several ranks brought together: which are the same, and what each rank did before them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from graphdoctor.trace.explain.ranks import Aligned, RankLane, align, compact, rank_lane
from tests.support.traces import TraceBuilder

Window = tuple[int, int]


def columns(pairs: Sequence[Window]) -> tuple[np.ndarray, np.ndarray]:
    edges = np.array(pairs, np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]


def lane(
    kinds: str,
    *,
    groups: Sequence[tuple[int, ...]] | None = None,
    ahead: int = 0,
    late: int = 0,
    begin: int = 0,
) -> RankLane:
    """A collective of 10 us every 100 us, a letter each, that begins `late` ns later and ends with the others."""
    starts = [100_000 * (place + 1) + ahead for place in range(len(kinds))]
    start, end = columns([(at + late, at + 10_000) for at in starts])
    return RankLane(
        kinds=tuple(kinds),
        groups=tuple(groups or [()] * len(kinds)),
        start_ns=start,
        end_ns=end,
        work_ns=columns([(at - 50_000, at - 30_000) for at in starts]),
        busy_ns=columns([(at - 50_000, at - 20_000) for at in starts]),
        begin_ns=begin,
        exchanges=len(kinds),
    )


def aligned(*lanes: RankLane) -> Aligned:
    found = align(lanes, [f"rank {n}" for n in range(len(lanes))])
    assert isinstance(found, Aligned), found
    return found


def test_before_a_collective_counts_from_the_end_of_the_one_before() -> None:
    one = lane("abcd", begin=60_000)
    assert one.before_ns.tolist() == [60_000, 110_000, 210_000, 310_000]
    assert one.compute_ns.tolist() == [10_000, 20_000, 20_000, 20_000]  # from 50,000 on
    assert one.idle_ns.tolist() == [20_000, 60_000, 60_000, 60_000]


def test_what_overlaps_the_collective_before_leaves_no_time_before_it() -> None:
    start, end = columns([(10, 50), (40, 90)])
    nothing = columns([])
    one = RankLane(("a", "a"), ((), ()), start, end, nothing, nothing, 5)
    assert one.before_ns.tolist() == [5, 40]
    assert one.idle_ns.tolist() == [5, 0]


def test_clocks_are_brought_together_by_the_ends_of_collectives() -> None:
    found = aligned(lane("abcd"), lane("abcd", ahead=7_000_000), lane("abcd", ahead=-3, late=4_000))
    assert found.offset_ns.tolist() == [0, 7_000_000, -3]
    assert (found.start_ns - found.offset_ns[:, None])[:, 0].tolist() == [100_000, 100_000, 104_000]


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("abcdef", "abcdef", "abcdef"),
        ("abcdef", "bcdef", "bcdef"),  # the second began to record later
        ("bcdef", "abcdef", "bcdef"),
        ("abcdef", "cdefgh", "cdef"),
        ("abcdefg", "abcd", "abcd"),
    ],
)
def test_lanes_that_began_at_another_collective_are_moved(
    one: str, other: str, common: str
) -> None:
    found = aligned(lane(one), lane(other))
    assert "".join(found.kinds) == common
    first = [one.index(common[0]), other.index(common[0])]
    assert found.end_ns[:, 0].tolist() == [100_000 * (n + 1) + 10_000 for n in first]


@pytest.mark.parametrize(("count", "is_enough"), [(3, False), (4, True)])
def test_clocks_need_four_collectives(count: int, is_enough: bool) -> None:
    found = align([lane("abcd"), lane("abcd"[:count])], ["r0", "r1"])
    assert isinstance(found, Aligned) is is_enough
    if isinstance(found, str):
        assert found.startswith("The trace of r1 has 3 collectives")


def test_another_order_is_told_with_the_first_place_that_differs() -> None:
    found = align([lane("aabbaabb"), lane("aabcaacb")], ["r0", "r1"])
    assert isinstance(found, str)
    assert "number 4 is b on r0 and c on r1" in found


@pytest.mark.parametrize(("unlike", "is_same"), [(1, True), (2, False)])
def test_one_collective_in_twenty_may_be_another(unlike: int, is_same: bool) -> None:
    kinds = "abcdefghijklmnopqrst"
    other = "".join("z" if n < unlike else kind for n, kind in enumerate(reversed(kinds)))[::-1]
    assert isinstance(align([lane(kinds), lane(other)], ["r0", "r1"]), Aligned) is is_same


@pytest.mark.parametrize(("apart_ns", "is_one_run"), [(50_000, True), (50_001, False)])
def test_collectives_that_end_further_apart_than_50_us_are_of_other_runs(
    apart_ns: int, is_one_run: bool
) -> None:
    one, other = lane("abcdef"), lane("abcdef")
    shifted = np.array([-1, 1, -1, 1, -1, 1]) * apart_ns
    moved = RankLane(
        other.kinds, other.groups, other.start_ns, other.end_ns + shifted, other.work_ns,
        other.busy_ns, 0,
    )  # fmt: skip
    found = align([one, moved], ["r0", "r1"])
    assert isinstance(found, Aligned) is is_one_run


@pytest.mark.parametrize(
    ("groups", "kinds"),
    [
        (([(0, 1)] * 4 + [(0, 1, 2)] * 5,) * 2, "efghi"),  # the group with most collectives
        (([(0, 1)] * 4 + [(0, 2)] * 5, [(0, 1)] * 4 + [(1, 3)] * 5), "abcd"),  # one in common
        (([(0, 1)] * 3 + [(0, 2)] * 6, [(0, 1)] * 3 + [(1, 3)] * 6), None),
    ],
)
def test_ranks_are_compared_by_the_group_that_they_share_most(
    groups: tuple[list[tuple[int, ...]], ...], kinds: str | None
) -> None:
    found = align([lane("abcdefghi", groups=each) for each in groups], ["r0", "r1"])
    if kinds is None:
        assert isinstance(found, str) and "no process group in common" in found
    else:
        assert isinstance(found, Aligned) and "".join(found.kinds) == kinds


def test_a_group_that_is_smaller_than_the_ranks_is_not_that_of_all() -> None:
    lanes = [lane("abcd", groups=[(0, 1)] * 4) for _ in range(3)]
    assert isinstance(align(lanes, ["r0", "r1", "r2"]), str)


def test_a_rank_s_lane_has_its_collectives_apart_from_its_other_work() -> None:
    builder = TraceBuilder()
    reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    send = "ncclDevKernel_SendRecv(x)"
    for name, start, length in (("k", 10, 20), (reduce, 25, 10), ("k", 50, 5), (send, 60, 5)):
        builder.kernel(builder.call("cudaLaunchKernel", start - 6, 2), start, length, name=name)
    found = rank_lane(builder.trace())
    assert (found.kinds, found.start_ns.tolist()) == (("all_reduce",), [25_000])
    assert (found.begin_ns, found.exchanges) == (10_000, 2)
    assert [each.tolist() for each in found.work_ns] == [[10_000, 50_000], [30_000, 55_000]]
    assert [each.tolist() for each in found.busy_ns] == [
        [10_000, 50_000, 60_000], [35_000, 55_000, 65_000],
    ]  # fmt: skip
    assert (found.compute_ns.tolist(), found.idle_ns.tolist()) == ([15_000], [0])


@pytest.mark.parametrize("seed", range(20))
def test_a_compact_lane_compares_as_the_whole_one_does(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count = 30
    edges = np.sort(draw.choice(100_000, 2 * count, replace=False)).astype(np.int64)
    kernels = np.sort(draw.choice(100_000, 2_000, replace=False)).astype(np.int64)
    work, busy = (kernels[0::4], kernels[1::4]), (kernels[0::2], kernels[1::2])
    groups = tuple((0, 1) if place % 3 else (0, 1, 2, 3) for place in range(count))
    lane = RankLane(("a",) * count, groups, edges[0::2], edges[1::2], work, busy, int(kernels[0]))
    small = compact(lane)
    assert len(small.work_ns[0]) <= 2 * count + 1 < len(work[0])
    for one, other in ((lane, small), (lane.only((0, 1)), small.only((0, 1)))):
        assert one.compute_ns.tolist() == other.compute_ns.tolist()
        assert one.idle_ns.tolist() == other.idle_ns.tolist()
