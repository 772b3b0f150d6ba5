"""cuDNN's dropout, seeded anew since a recording put the generator's state back, is no hazard of the step."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.values.host_events import RngState
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Iteration, Op
from tests.support.builders import iteration, op, recording, tensor


def lstm() -> list[Op]:
    return [op("aten._cudnn_rnn.default", [tensor(1, 4, 8)], [tensor(2, 4, 8)], line=7)]


def seeding() -> list[Op]:
    """As an H200 shows it: with the line of the model that calls the RNN."""
    seed = tensor(30, dtype="int64")
    read_tags = ["data_dependent_output"]
    return [
        op("aten.empty.memory_format", [], [seed], line=7),
        op("aten.random_.default", [seed], [seed], writes=[30], line=7),
        op("aten._local_scalar_dense.default", [seed], line=7, tags=read_tags),
        op("aten._cudnn_init_dropout_state.default", [0.5, True, 1], [tensor(31, 64)], line=7),
    ]


def steps(first: list[Op]) -> list[Iteration]:
    return [iteration([*(first if not at else []), *lstm()], index=at) for at in range(3)]


def rules_of(iterations: list[Iteration]) -> set[str]:
    return {finding.rule for finding in diagnose(recording(*iterations)).findings}


def test_the_seed_of_the_first_recorded_step_is_no_finding() -> None:
    assert rules_of(steps(seeding())) == set()


@pytest.mark.parametrize("left_out", [1, 3])
def test_a_read_that_seeds_nothing_is_one(left_out: int) -> None:
    ops = seeding()
    del ops[left_out]
    assert "GD101" in rules_of(steps(ops))


def test_a_step_that_sets_the_generator_itself_seeds_in_every_step() -> None:
    event = RngState("torch.cuda.set_rng_state()", 0, Location("model.py", 6))
    each = [replace(iteration([*seeding(), *lstm()], index=at), events=(event,)) for at in range(3)]
    assert "GD101" in rules_of(each)
