"""align: pairs of equal calls of two runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.rules.causes.align import align
from tests.support.builders import op

_LETTERS = st.text(alphabet="abcdef", max_size=40)


def _ops(letters: str) -> list:
    return [op(f"aten.{letter}.default") for letter in letters]


def _matched(a: str, b: str) -> str:
    pairs = align(_ops(a), _ops(b))
    return "".join(a[i] for i, j in pairs if i is not None and j is not None)


@given(_LETTERS, _LETTERS)
def test_every_position_appears_once_and_in_order(a: str, b: str) -> None:
    pairs = align(_ops(a), _ops(b))
    assert [i for i, _ in pairs if i is not None] == list(range(len(a)))
    assert [j for _, j in pairs if j is not None] == list(range(len(b)))
    assert (None, None) not in pairs


@given(_LETTERS, _LETTERS)
def test_only_equal_calls_are_paired(a: str, b: str) -> None:
    for i, j in align(_ops(a), _ops(b)):
        if i is not None and j is not None:
            assert a[i] == b[j]


@given(_LETTERS)
def test_equal_runs_are_paired_completely(a: str) -> None:
    assert align(_ops(a), _ops(a)) == tuple((i, i) for i in range(len(a)))


@given(_LETTERS, st.integers(0, 40), st.text(alphabet="xyz", min_size=1, max_size=10))
def test_an_insertion_leaves_everything_else_paired(a: str, at: int, inserted: str) -> None:
    assert _matched(a, a[:at] + inserted + a[at:]) == a


def test_a_branch_that_differs_is_left_unpaired_between_its_neighbours() -> None:
    assert align(_ops("abxyc"), _ops("abzc")) == (
        (0, 0), (1, 1), (2, None), (3, None), (None, 2), (4, 3),
    )  # fmt: skip


def test_a_loop_with_an_optional_call_keeps_all_other_calls_paired() -> None:
    assert _matched("xabababababy", "xabababcababy") == "xabababababy"


def test_moved_blocks_pair_the_longest_rising_run() -> None:
    assert _matched("abcdef", "fabcde") == "abcde"


def test_equal_calls_on_either_side_of_an_anchor_are_paired() -> None:
    """The `u` is there once; what repeats is paired from there on, before the ends that differ."""
    assert _matched("pffuffq", "rffuffs") == "ffuff"


def test_location_module_and_phase_tell_calls_apart() -> None:
    call = op("aten.relu.default", line=3, module="a")
    for other in (
        op("aten.relu.default", line=4, module="a"),
        op("aten.relu.default", line=3, module="b"),
        op("aten.relu.default", line=3, module="a", phase="backward"),
    ):
        assert align([call], [other]) == ((0, None), (None, 0))


def test_long_runs_without_resemblance_stay_unpaired() -> None:
    assert _matched("ab" * 2000, "cd" * 2000) == ""
