"""How a budget of time is shared out between strategies that need more or less of it."""

from __future__ import annotations

from graphdoctor.strategies.choice import budget_for, limit_s, needed_s
from graphdoctor.strategies.compilers.compiler import ReduceOverhead
from graphdoctor.strategies.compilers.in_graph import CompiledWhole
from graphdoctor.strategies.modules import Modules
from graphdoctor.values.recording import Iteration
from tests.support.builders import iteration, op, tensor


def step_of(operators: int) -> Iteration:
    one = tensor(0, 4)
    return iteration(op("aten.relu.default", [one], [one]) for _ in range(operators))


BERT = step_of(2300)  # the operators of a training step of BERT base


def test_both_compilers_have_a_chance_within_two_minutes_on_bert() -> None:
    first = limit_s(CompiledWhole(), [ReduceOverhead()], BERT, left_s=120.0)
    needed = needed_s(CompiledWhole(), BERT)
    assert needed < first < 120.0  # one that hangs leaves the other something
    assert limit_s(ReduceOverhead(), [], BERT, left_s=120.0 - needed) > needed


def test_what_needs_little_has_half_and_never_more_than_is_left() -> None:
    assert limit_s(Modules(), [ReduceOverhead()], BERT, left_s=100.0) == 50.0
    assert limit_s(CompiledWhole(), [Modules()], BERT, left_s=30.0) == 30.0


def test_more_operators_need_more_time_and_the_budget_for_all_is_told_in_minutes() -> None:
    assert needed_s(CompiledWhole(), step_of(10)) < needed_s(CompiledWhole(), BERT)
    assert budget_for([CompiledWhole(), ReduceOverhead()], BERT) == "2m"
    assert budget_for([CompiledWhole(), ReduceOverhead(), Modules(), Modules()], BERT) == "3m"
