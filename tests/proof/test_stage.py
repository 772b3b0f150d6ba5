"""Which captures are tried, and whether the graph of the whole step is kept."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch
from msgspec import structs

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.diagnose.diagnose import Diagnosis, diagnose
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.graphs.whole_step import CapturedStep
from graphdoctor.partition import partition
from graphdoctor.proof.stage import Captured, capture_and_verify, prove_whole_step
from graphdoctor.record import prepare, record
from graphdoctor.record.place import place
from graphdoctor.target import from_object


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[CapturedStep]:
    """The graphs that were given back."""
    found: list[CapturedStep] = []
    release = CapturedStep.release

    def noted(step: CapturedStep) -> None:
        found.append(step)
        release(step)

    monkeypatch.setattr(CapturedStep, "release", noted)
    return found


def tried(
    device: EmulatedDevice,
    step: Callable[[torch.Tensor], torch.Tensor],
    *,
    diagnosed: Callable[[Diagnosis], Diagnosis] = lambda found: found,
) -> Captured:
    target = place(from_object(step, torch.ones(4)), device)
    try:
        session = prepare(target, device, iterations=2)
        recording = record(session, progress=lambda doing: None)
        diagnosis = diagnose(recording)
        plan = partition(recording, diagnosis, profile=load_profile("h100"))
        return capture_and_verify(session, recording, diagnosed(diagnosis), plan)
    finally:
        target.close()


def test_a_safe_step_is_one_graph_that_its_owner_gives_back(
    device: EmulatedDevice, released: list[CapturedStep]
) -> None:
    captured = tried(device, lambda data: data * 2.0)
    (outcome,) = captured.outcomes
    assert outcome.is_whole_step and outcome.is_verified
    assert captured.step is not None
    assert captured.cost is captured.pool_bytes is None  # there is no GPU that could tell
    assert released == []
    captured.release()
    assert released == [captured.step]


def test_a_forbidden_capture_is_tried_where_it_does_no_harm_and_so_are_the_regions(
    device: EmulatedDevice,
) -> None:
    captured = tried(device, lambda data: (data + 1.0) * float(data.sum()))
    whole, *regions = captured.outcomes
    assert (whole.is_whole_step, whole.status) == (True, "refused")
    assert [one.scope for one in regions] == ["region A", "region B"]
    assert all(one.is_verified for one in regions)
    assert captured.step is None
    captured.release()


def test_a_graph_whose_replays_are_wrong_is_given_back(
    device: EmulatedDevice, released: list[CapturedStep]
) -> None:
    numbers = count(1)
    captured = tried(device, lambda data: (data + 1.0) * next(numbers))
    whole = captured.outcomes[0]
    assert whole.is_whole_step and whole.verification is not None
    assert whole.verification.status == "wrong"
    assert captured.step is None
    assert len(released) == 1


def test_a_graph_that_is_right_so_far_is_given_back_where_a_finding_says_what_can_come(
    device: EmulatedDevice, released: list[CapturedStep]
) -> None:
    """The whole step is one region: there is nothing else to try."""
    reading = tried_diagnosis(device)
    captured = tried(device, lambda data: data * 2.0, diagnosed=lambda found: reading)
    (outcome,) = captured.outcomes
    assert outcome.is_verified
    assert captured.step is None
    assert len(released) == 1


def tried_diagnosis(device: EmulatedDevice) -> Diagnosis:
    """Of a step that reads a value."""
    kept: list[Diagnosis] = []

    def note(found: Diagnosis) -> Diagnosis:
        kept.append(found)
        return found

    tried(device, lambda data: data * float(data.sum()), diagnosed=note)
    assert any(finding.effect == "capture-fails" for finding in kept[0].findings)
    return kept[0]


def test_what_only_makes_a_replay_slow_leaves_the_graph_of_the_whole_step(
    device: EmulatedDevice, released: list[CapturedStep]
) -> None:
    findings = tuple(
        structs.replace(found, effect="replay-is-slow")
        for found in tried_diagnosis(device).findings
    )
    captured = tried(
        device,
        lambda data: data * 2.0,
        diagnosed=lambda found: structs.replace(found, findings=findings),
    )
    assert captured.step is not None
    assert captured.step not in released
    captured.release()


def test_a_capture_without_values_has_no_replay_and_compares_no_tensor() -> None:
    with EmulatedDevice() as device:
        target = place(from_object(lambda data: data * 2.0, torch.ones(4)), device)
        try:
            session = prepare(target, device, iterations=2)
            device.leave_values_out()
            outcome, step = prove_whole_step(session)
        finally:
            target.close()
    verification = outcome.verification
    assert step is None and outcome.status == "captured" and verification is not None
    assert verification.status == "not-verified"
    assert (verification.replays, verification.tensors) == (0, 0)


def test_a_graph_that_is_one_rounding_off_is_wrong_on_the_emulated_device(
    device: EmulatedDevice,
) -> None:
    """A replay there runs eager's own operators: nothing explains another bit."""
    numbers = count()
    eps = torch.finfo(torch.float32).eps
    captured = tried(device, lambda data: data * (1.0 + next(numbers) * eps))
    assert captured.step is None
    verification = captured.outcomes[0].verification
    assert verification is not None and verification.status == "wrong"
