"""What each iteration has to keep out of a graph, and after what the host goes on as it read."""

from __future__ import annotations

import pytest

from graphdoctor.partition.hazards import Hazards, Signatures, cutting, hazards, input_signature
from graphdoctor.rules.rule import Hit
from graphdoctor.values.recording import Arg, Iteration, Op, Opaque
from tests.support.builders import hit, iteration, op, recording, tensor

X, Y = tensor(1, 4), tensor(2, 4)


def _hazards(*runs: Iteration, hits: list[tuple[str, Hit]] | None = None) -> tuple[Hazards, ...]:
    return hazards(recording(*runs), hits or [], Signatures())


def _relu(size: int = 4, line: int = 1) -> Op:
    return op("aten.relu.default", [tensor(1, size)], [tensor(2, size)], line=line)


def _scaled(factor: float, size: int = 4) -> Op:
    return op("aten.mul.Tensor", [tensor(1, size), factor], [tensor(2, size)])


def test_what_differs_in_a_scalar_is_told_from_what_differs_in_a_shape() -> None:
    scalars = _hazards(iteration([_scaled(1.0)]), iteration([_scaled(2.0)], index=1))
    shapes = _hazards(iteration([_relu(4)]), iteration([_relu(5)], index=1))
    assert [each.followers for each in scalars] == [{0: "GD203"}] * 2
    assert [each.followers for each in shapes] == [{0: "GD202"}] * 2


def test_inputs_of_another_shape_may_lead_to_other_shapes() -> None:
    runs = (iteration([_relu(size)], index=size, inputs=[tensor(1, size)]) for size in (4, 5))
    assert [each.followers for each in _hazards(*runs)] == [{}, {}]


def test_what_runs_on_the_host_may_differ() -> None:
    def on_host(factor: float) -> Op:
        return op("aten.mul.Tensor", [tensor(1, 4, device="cpu"), factor], device="cpu")

    runs = (iteration([on_host(at)], index=int(at)) for at in (0.0, 1.0))
    assert [each.followers for each in _hazards(*runs)] == [{}, {}]


def test_an_operator_that_a_rule_hit_is_no_follower() -> None:
    runs = (iteration([_scaled(1.0)]), iteration([_scaled(2.0)], index=1))
    found = _hazards(*runs, hits=[("GD204", hit(0, iteration=1))])
    assert [(each.hit, each.followers) for each in found] == [({0: ("GD204",)}, {})] * 2


def test_equal_calls_of_one_line_are_counted_so_that_the_second_is_the_second_everywhere() -> None:
    runs = (iteration([_relu(), _relu(line=9), _relu()], index=at) for at in (0, 1))
    found = _hazards(*runs, hits=[("GD205", hit(2, iteration=1))])
    assert [each.hit for each in found] == [{2: ("GD205",)}] * 2
    assert [each.blocks(2) for each in found] == [True, True]
    assert not found[0].blocks(0)


def test_the_host_s_actions_cut_before_an_operator_or_behind_all() -> None:
    hits = [("GD108", hit(1, between=True)), ("GD110", hit(2, between=True))]
    (found,) = _hazards(iteration([_relu(), _relu(line=2)]), hits=hits)
    assert (found.cuts, found.hit) == ({1: ("GD108",), 2: ("GD110",)}, {})


_READ = op("aten.nonzero.default", [X], [Y], tags=["dynamic_output_shape"])
_OWN = op("aten._local_scalar_dense.default", [tensor(9, 1, device="cpu")], device="cpu")


@pytest.mark.parametrize(
    ("operator", "rules", "decisive"),
    [
        (_READ, (), False),  # no rule minds
        (_READ, ("GD205",), True),
        (_relu(), ("GD101",), True),  # the rule says that the host learns something
        (_relu(), ("GD104",), False),  # it only feeds the device
        (_relu(), ("GD205",), False),
        (_OWN, (), True),  # what the host reads of its own, no rule can tell
    ],
)
def test_the_host_goes_on_as_it_read_after_what_tells_it_something(
    operator: Op, rules: tuple[str, ...], decisive: bool
) -> None:
    (found,) = _hazards(iteration([operator]), hits=[(rule, hit(0)) for rule in rules])
    assert found.decisive == ({0} if decisive else set())


def test_what_only_makes_a_replay_slow_cuts_nothing() -> None:
    slow, wrong = ("GD301", hit(0)), ("GD205", hit(0))
    assert cutting([slow, wrong]) == (wrong,)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, True, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (X, tensor(7, 4), True),  # another address is the same call
        (X, tensor(1, 4, dtype="float16"), False),
        ((X, 1), (X, 2), False),
        (Opaque("<f at 0x7f01>"), Opaque("<g at 0x7f02>"), True),
        (Opaque("torch.int64"), Opaque("torch.int32"), False),
    ],
)
def test_calls_have_one_signature_where_a_graph_would_hold_the_same(
    one: Arg, other: Arg, equal: bool
) -> None:
    numbers = Signatures().of(iteration([op("aten.f", [one]), op("aten.f", [other])]))
    assert (numbers[0] == numbers[1]) is equal


def test_inputs_are_told_apart_by_shape_and_not_by_address() -> None:
    of_one, of_another, longer = (
        input_signature(iteration([], inputs=[use])) for use in (X, tensor(7, 4), tensor(1, 5))
    )
    assert of_one == of_another != longer
