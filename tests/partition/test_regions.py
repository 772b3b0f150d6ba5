"""What a region is called, which modules it holds, and whether it pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import pytest

from graphdoctor.estimate import saving_us
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.estimate.timeline import copy_pieces
from graphdoctor.partition.hazards import Hazards
from graphdoctor.partition.regions import (
    FEWEST_LAUNCHES,
    Piece,
    Schedule,
    Surroundings,
    _judged,
    covered,
    described,
    forward_work,
    lasting_storages,
    names,
    pieces,
    safe_modules,
)
from graphdoctor.values.figures import Range
from graphdoctor.values.recording import External, Op
from tests.support.builders import iteration, op, tensor


def test_names_go_on_after_the_alphabet() -> None:
    found = list(islice(names(), 26 + 26 * 26 + 1))
    assert found[:2] == ["A", "B"]
    assert found[25:28] == ["Z", "AA", "AB"]
    assert found[-2:] == ["ZZ", "AAA"]
    assert len(set(found)) == len(found)


def kernels(*modules: str, phase: str = "forward") -> list[Op]:
    return [
        op("aten.relu.default", [tensor(0, 4)], [tensor(1, 4)], module=module, phase=phase)  # type: ignore[arg-type]
        for module in modules
    ]


def test_forward_work_counts_a_module_s_own_and_its_parts() -> None:
    found = forward_work([*kernels("a.b", "a.b", "a", ""), *kernels("a.c", phase="backward")])
    assert found == Counter({"a": 3, "a.b": 2})


def test_a_region_holds_the_outermost_modules_that_lie_in_it_whole() -> None:
    totals = Counter({"a": 3, "a.b": 2, "c": 2, "c.d": 1})
    assert covered(Counter({"a": 3, "a.b": 2}), totals) == ("a",)
    assert covered(Counter({"a": 2, "a.b": 2}), totals) == ("a.b",)
    assert covered(Counter({"c": 1, "c.d": 1, "a": 3, "a.b": 2}), totals) == ("c.d", "a")
    assert covered(Counter({"a": 1, "a.b": 1}), totals) == ()


def test_modules_are_safe_unless_something_unsafe_is_in_them() -> None:
    work = [Counter({"a": 2, "a.b": 1, "a.c": 1}), Counter({"d": 1})]
    assert safe_modules(work, []) == ("a", "d")
    assert safe_modules(work, ["a.b"]) == ("a.c", "d")
    assert safe_modules(work, ["a"]) == ("a.b", "a.c", "d")
    assert safe_modules(work, [""]) == ("a", "d")


def held(storage: int, origin: str) -> External:
    return External(storage, origin, f"{origin} {storage}", "cuda:0")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("externals", "lasting"),
    [
        ([[held(1, "state")]], {1}),
        ([[held(1, "input")], [held(1, "input")]], set()),  # a caller may free it
        ([[held(1, "previous-iteration")]], set()),
        ([[held(1, "previous-iteration")], [held(1, "previous-iteration")]], {1}),
        ([[held(1, "previous-iteration")], [held(2, "previous-iteration")]], set()),
        ([[held(1, "previous-iteration")], [], [held(1, "previous-iteration")]], {1}),
        ([[held(1, "previous-iteration")], [held(1, "input")]], set()),
    ],
)
def test_state_lasts_and_so_does_what_two_iterations_find_in_one_place(
    externals: Sequence[Sequence[External]], lasting: set[int]
) -> None:
    runs = [iteration([], index=at, externals=each) for at, each in enumerate(externals)]
    assert lasting_storages(runs) == lasting


def piece(launches: int, *moved: Op) -> Piece:
    return Piece(iteration([]), (), (launches,), (), (), moved)


SAVES, NOTHING = Range(1.0, 2.0, 3.0), Range(-1.0, 0.0, 1.0)


def test_the_fewest_launches_that_pay_are_ten() -> None:
    assert FEWEST_LAUNCHES == 10
    assert _judged(piece(10), SAVES, 0) == (True, "10 launches become one")
    assert _judged(piece(9), SAVES, 0) == (False, "too small to pay: 9 launches, fewer than 10")


def test_a_region_that_saves_nothing_does_not_pay() -> None:
    is_worthwhile, reason = _judged(piece(10), NOTHING, 0)
    assert not is_worthwhile
    assert reason == "too small to pay: launching a graph costs more than 10 launches"
    assert "and copying 1 input costs" in _judged(piece(10), NOTHING, 1)[1]
    assert _judged(piece(10), Range(-1.0, 0.01, 1.0), 1)[0]


def test_operators_that_have_to_move_out_first_are_told() -> None:
    (first,) = kernels("a")
    _, one = _judged(piece(10, first), SAVES, 0)
    assert one == (
        "10 launches become one once aten.relu.default of model.py:1, "
        "which can run before or after, is moved out"
    )
    _, two = _judged(piece(10, first, first), SAVES, 0)
    assert "of model.py:1 and 1 more, which" in two
    _, three = _judged(piece(10, first, first, first), SAVES, 0)
    assert "of model.py:1 and 2 more, which" in three


@pytest.mark.parametrize("lasting", [frozenset(), frozenset({0})])
def test_what_a_region_saves_is_less_by_the_copies_of_inputs_that_move(
    lasting: frozenset[int],
) -> None:
    """The least that is saved goes with the most that copies cost, and the other way round."""
    profile = load_profile("h100")
    given = tensor(0, 1024)
    ops = [op("aten.mul.Tensor", [given, 2.0], [tensor(n, 1024)]) for n in range(1, 13)]
    ran = iteration(ops)
    whole = Piece(ran, ran.ops, (1,) * 12, (), (), ())
    around = Surroundings({ran.index: Counter()}, lasting)
    found = described([whole], "A", surroundings=around, profile=profile).region.saving_us
    gross = saving_us(ran.ops, profile)
    if lasting:
        assert found == gross
        return
    (copy,) = copy_pieces([given], profile)
    cost = {
        end: max(getattr(copy.host_us, end), getattr(copy.device_us, end))
        for end in Range.__struct_fields__
    }
    assert 0 < cost["low"] < cost["mid"] < cost["high"]
    assert found == Range(
        gross.low - cost["high"], gross.mid - cost["mid"], gross.high - cost["low"]
    )


def test_what_follows_from_a_hit_is_put_down_to_the_nearest_hit_before_it() -> None:
    ran = iteration([op("aten.relu.default", [tensor(n, 4)], [tensor(n + 1, 4)]) for n in range(6)])
    plan = Schedule((0, 1, 2, 3, 4, 5), (1,) * 6, (frozenset(),) * 6, {})
    stands = Hazards({1: ("GD101",), 3: ("GD103",)}, {}, {5: "GD999"}, frozenset())
    found = list(pieces(ran, plan, stands, signatures=range(6)))
    assert [one.blocked_by for one in found] == [("GD101",), ("GD101", "GD103"), ("GD103",)]
    alone = Hazards({}, {}, {5: "GD999"}, frozenset())
    assert [one.blocked_by for one in pieces(ran, plan, alone, signatures=range(6))][-1] == (
        "GD999",
    )
