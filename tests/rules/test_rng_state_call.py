"""Where a step sets a generator's state, and what checkpointing does of it a second time."""

from __future__ import annotations

import pytest
import torch
from msgspec import structs

from graphdoctor.rules.rng_state_call import RngStateCall
from graphdoctor.values.host_events import RngState
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Phase
from tests.support.builders import iteration, op, recording
from tests.support.diagnosing import diagnosed


@pytest.mark.parametrize(
    ("phases", "lines"),
    [
        (("forward", "backward"), [1, 1]),  # set again by what is recomputed: the same cause
        (("forward", "forward"), [1, 2]),
        (("backward", "backward"), [1, 2]),
        (("forward",), [1, 2]),  # the second behind the last operator
    ],
)
def test_a_state_that_is_set_again_in_the_backward_pass_has_the_first_place(
    phases: tuple[Phase, ...], lines: list[int]
) -> None:
    events = tuple(
        RngState("set_rng_state()", at, Location("model.py", at + 1), refusal="refused")
        for at in range(2)
    )
    step = iteration([op("aten.relu.default", phase=phase) for phase in phases])
    hits = RngStateCall().check(recording(structs.replace(step, events=events)))
    assert [hit.location.line for hit in hits if hit.location is not None] == lines


def test_a_seed_that_the_step_sets_again_elsewhere_is_one_finding_with_one_cure() -> None:
    """As zeroth-order optimizers do, which move by the same numbers forth and back."""

    def target() -> object:
        seeds = iter(range(1, 100))

        def step(x: torch.Tensor) -> torch.Tensor:
            seed = next(seeds)
            torch.manual_seed(seed)
            y = x + torch.randn(4, device="cuda")
            torch.manual_seed(seed)
            return y * 2 - torch.randn(4, device="cuda")

        return step, (torch.ones(4, device="cuda"),)

    (finding,) = [one for one in diagnosed(target).findings if one.rule in ("GD110", "GD215")]
    assert finding.rule == "GD110"
    assert finding.fix.startswith("In each step, draw the numbers that must repeat once")
    assert "each of the 2 places" in finding.fix
    assert "Seed before" not in finding.fix
