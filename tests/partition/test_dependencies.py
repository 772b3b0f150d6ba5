"""What each operator of an iteration must come after, and which ones the host learns something from."""

from __future__ import annotations

import pytest

from graphdoctor.partition.hazards import is_host_read, predecessors, value_of
from graphdoctor.values.recording import Op
from tests.support.builders import op, tensor

X, Y, Z = (tensor(storage, 4) for storage in (1, 2, 3))
_HALF = tensor(1, 2, offset=2)  # of X's memory


def _read(of: object, made: int) -> Op:
    return op("aten.neg.default", [of], [tensor(made, 4)])  # type: ignore[list-item]


def _write(of: int = 1) -> Op:
    return op("aten.zero_.default", [tensor(of, 4)], [tensor(of, 4)], writes=[of])


def _view_of_x() -> Op:
    return op("aten.slice.Tensor", [X], [_HALF])


def _after(*ops: Op) -> list[set[int]]:
    return [set(found) for found in predecessors(ops)]


def test_a_reader_comes_after_who_made_the_value_and_not_after_itself() -> None:
    made = op("aten.relu.default", [Y], [X])
    assert _after(made, _read(X, 5), _read(Y, 6)) == [set(), {0}, set()]


def test_a_part_of_fresh_memory_comes_after_the_operator_that_made_the_memory() -> None:
    """Nothing recorded made the view, so that only the memory tells."""
    made = op("aten.relu.default", [Y], [X])
    assert _after(made, _read(_HALF, 5)) == [set(), {0}]


def test_memory_that_is_used_again_waits_for_those_who_read_what_was_there() -> None:
    fresh = op("aten.relu.default", [Z], [X])
    assert _after(_read(X, 5), fresh) == [set(), {0}]


def test_a_write_waits_for_all_readers_since_the_last_write_and_for_no_earlier_one() -> None:
    step = (_read(X, 5), _write(), _read(X, 6), _read(X, 7), _write())
    assert _after(*step) == [set(), {0}, {1}, {1}, {1, 2, 3}]


def test_a_view_may_change_places_with_writes_of_its_memory() -> None:
    made = op("aten.relu.default", [Y], [X])
    fill = op("aten.fill_.Scalar", [_HALF, 1.0], [_HALF], writes=[1])
    assert _after(made, fill, _view_of_x()) == [set(), {0}, {0}]


def test_a_view_of_unknown_origin_stays_behind_the_last_write() -> None:
    fill = op("aten.fill_.Scalar", [_HALF, 1.0], [_HALF], writes=[1])
    assert _after(fill, _view_of_x()) == [set(), {0}]


def test_a_view_is_no_write_of_the_memory_that_it_shows() -> None:
    """A later reader of the memory need not wait for it."""
    assert _after(_view_of_x(), _read(tensor(1, 3), 5)) == [set(), set()]


def test_random_operators_follow_one_another_and_nothing_else_follows_them() -> None:
    def draw(made: int) -> Op:
        return op("aten.rand.default", [], [tensor(made, 4)], tags=["nondeterministic_seeded"])

    assert _after(draw(5), _read(X, 6), draw(7), draw(8)) == [set(), set(), {0}, {2}]


@pytest.mark.parametrize(
    "other",
    [tensor(2, 4), tensor(1, 5), tensor(1, 4, offset=1), tensor(1, 4, dtype="int64")],
)
def test_a_value_is_memory_place_shape_and_dtype(other: object) -> None:
    assert value_of(X) == value_of(tensor(1, 4))
    assert value_of(X) != value_of(other)  # type: ignore[arg-type]


HOST = tensor(9, 4, device="cpu")


@pytest.mark.parametrize(
    ("operator", "reads"),
    [
        (op("aten._local_scalar_dense.default", [HOST]), True),
        (op("aten.nonzero.default", [X], [Y], tags=["dynamic_output_shape"]), True),
        (op("aten.equal.default", [X, Y], tags=["data_dependent_output"]), True),
        (op("aten._to_copy.default", [X], [HOST]), True),
        (op("aten.copy_.default", [HOST, X], [HOST], writes=[9]), True),
        (op("aten.add_.Tensor", [X, HOST], [X], writes=[1]), False),
        (op("aten.add.Tensor", [X, HOST], [Y]), False),
        (op("aten.add.Tensor", [HOST, HOST], [tensor(8, 4, device="cpu")]), False),
    ],
)
def test_the_host_learns_what_ends_in_its_own_memory(operator: Op, reads: bool) -> None:
    assert is_host_read(operator) is reads
