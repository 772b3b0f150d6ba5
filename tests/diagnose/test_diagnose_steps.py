"""Steps as people write them: one finding for each cause, on its line; and the machine agrees."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
import torch

from graphdoctor.diagnose.diagnose import Diagnosis
from tests.steps import STEPS
from tests.steps.making import steps_of
from tests.support.diagnosing import diagnosed, found, judged, marked
from tests.support.torch_versions import STORES_NUMBERS_BY_FILLING, WHY_FILLING

# What is not seen, with the reason.
UNSEEN: dict[str, str] = {"filled_at_an_index": WHY_FILLING} if STORES_NUMBERS_BY_FILLING else {}
# A fact about the caller's tensor, which comparing the two twins' own inputs cannot show.
NOT_IN_TWINS = "inplace_activation_on_the_input"


def each_step():
    for step in STEPS:
        reason = UNSEEN.get(step.__name__)
        marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
        yield pytest.param(step, id=step.__name__, marks=marks)


@pytest.fixture(autouse=True)
def seeded() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


judgement = cache(judged)


@pytest.mark.parametrize("step", list(each_step()))
def test_each_cause_is_one_finding_on_its_line(step) -> None:
    diagnosis, _ = judgement(step)
    assert found(diagnosis) == marked(step)
    assert len(diagnosis.findings) == len(marked(step))


@pytest.mark.parametrize("step", [s for s in STEPS if s.__name__ not in {*UNSEEN, NOT_IN_TWINS}])
def test_the_machine_agrees_with_the_diagnosis(step) -> None:
    rules = {rule for rule, _ in marked(step)}
    _, outcome = judgement(step)
    if any(rule.startswith("GD1") for rule in rules):
        assert outcome.status == "refused"
        return
    assert outcome.status == "captured", outcome.reason
    assert outcome.verification is not None
    wanted = "wrong" if rules else "verified"
    assert outcome.verification.status == wanted, outcome.verification.reason


# ---- what the messages say


def only_message(diagnosis: Diagnosis) -> str:
    (finding,) = diagnosis.findings
    return finding.message


def step_named(name: str):
    return next(step for step in STEPS if step.__name__ == name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("read_as_a_factor", ["`x.abs().max().item()`", "0-d float32 tensor"]),
        ("read_then_branch", ["`if total > 0:`", "recorded steps"]),
        ("read_in_a_helper", ["`if is_large(x):`"]),
        ("masked_loss", ["(4, 8) bool tensor"]),
        ("index_by_host_tensor", ["aten.index", "(2,) int64 tensor"]),
        ("alternating_loss", ["`if state.calls % 2 == 0:`", "aten.sin"]),
        ("rounds_by_a_counter", ["`for ... in range(state.calls % 3):`", "aten.sin"]),
        ("row_of_a_table", ["`index` of aten.select changes"]),
        ("noise_level_by_step", ["aten.mul takes its scalar from a 0-d float32 tensor on the CPU"]),
        ("scheduled_adam", ["aten."]),
        ("list_of_states", ["aten.stack", "tensors in one step"]),
        ("noise_from_the_cpu", ["aten.rand", "aten.mul"]),
        ("changing_cpu_scalar", ["self.scale"]),
        ("layer_drop", ["random.random()"]),
    ],
)
def test_a_message_names_what_it_is_about(name: str, words: list[str]) -> None:
    message = only_message(judgement(step_named(name))[0])
    assert [word for word in words if word not in message] == []


def test_a_line_that_does_it_twice_is_one_finding_that_counts_two() -> None:
    (finding,) = judgement(step_named("read_twice_on_a_line"))[0].findings
    assert finding.count == 2


def test_hits_keep_what_findings_leave_out() -> None:
    diagnosis, _ = judgement(step_named("round_trip_on_one_line"))
    assert {finding.rule for finding in diagnosis.findings} == {"GD103"}
    assert {rule for rule, _ in diagnosis.hits} >= {"GD103", "GD104"}


def slowly_scheduled():
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # <- GD204
        scheduler.step()
        return loss

    return steps_of(step, model, optimizer, scheduler)


def test_a_schedule_that_has_not_changed_the_rate_yet_is_found_by_its_advancing() -> None:
    diagnosis = diagnosed(slowly_scheduled)
    assert found(diagnosis) == marked(slowly_scheduled)
    assert "steplr" in only_message(diagnosis)
