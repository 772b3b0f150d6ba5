"""Whether the machine's word stands against a finding: a capture that succeeds refutes what says it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.partition import partition
from graphdoctor.proof.stage import Captured, capture_and_verify
from graphdoctor.record import prepare, record
from graphdoctor.record.place import place
from graphdoctor.rules import ALL_RULES
from graphdoctor.rules.rule import Hit, RecordingRule
from graphdoctor.target import from_object
from graphdoctor.values.recording import Recording


class Wrong(RecordingRule):
    """Says of every tanh that no capture takes it."""

    id = "GD199"
    name = "wrong"
    effect = "capture-fails"
    fix = "Nothing."
    evidence = "None: this rule is wrong."
    first_iteration = 0

    @staticmethod
    def bad() -> object:
        raise NotImplementedError

    @staticmethod
    def good() -> object:
        raise NotImplementedError

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured[self.first_iteration :]:
            for index, op in enumerate(iteration.ops):
                if op.name == "aten.tanh.default":
                    yield Hit(iteration.index, index, "tanh is refused", op.location)


class WrongLater(Wrong):
    """The same, of later iterations only: what is captured is the first one."""

    first_iteration = 1


def tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


def reading(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * float(x.sum())


def tried(step: Callable[..., object], rule: type[RecordingRule], *, by_gpu: bool) -> Captured:
    with EmulatedDevice() as device:
        target = place(from_object(lambda: (step, (torch.randn(8),))), device)
        session = prepare(target, device, iterations=3)
        recording = record(session, progress=lambda doing: None)
        diagnosis = diagnose(recording, [*ALL_RULES, rule])
        assert rule.id in {found.rule for found in diagnosis.findings}
        plan = partition(recording, diagnosis, profile=load_profile("h100"))
        captured = capture_and_verify(session, recording, diagnosis, plan, by_gpu=by_gpu)
        captured.release()
        return captured


def test_a_capture_with_right_replays_refutes_what_says_that_it_fails() -> None:
    captured = tried(tanh, Wrong, by_gpu=True)
    assert [found.rule for found in captured.refuted] == ["GD199"]
    assert captured.step is not None
    (limit,) = captured.limits
    assert limit.startswith("GD199 wrong at test_refuted_findings.py:")
    assert limit.endswith(
        "is left out: this GPU captured the whole step, and its replays were right."
    )


def test_the_emulated_device_refutes_nothing() -> None:
    captured = tried(tanh, Wrong, by_gpu=False)
    assert (captured.refuted, captured.limits, captured.step) == ((), (), None)


def test_what_the_captured_iteration_did_not_do_is_not_refuted() -> None:
    captured = tried(tanh, WrongLater, by_gpu=True)
    assert (captured.refuted, captured.step) == ((), None)


def test_a_refused_capture_refutes_nothing() -> None:
    captured = tried(reading, Wrong, by_gpu=True)
    assert (captured.refuted, captured.step) == ((), None)
    assert captured.outcomes[0].status == "refused"


@pytest.mark.gpu
def test_on_a_gpu_a_wrong_finding_leaves_the_step_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "__defaults__", ([*ALL_RULES, Wrong],))
    report = graphdoctor.analyze(tanh, torch.randn(8), device="cuda", strategies=())
    assert report.verdict == "safe"
    assert "GD199" not in {found.rule for found in report.findings}
    assert any("GD199 wrong" in limit for limit in report.limits)


@pytest.mark.gpu
def test_on_a_gpu_a_refused_capture_confirms_the_finding() -> None:
    report = graphdoctor.analyze(reading, torch.randn(8), device="cuda", strategies=())
    assert report.verdict == "unsafe"
    assert next((f.rule, f.certainty) for f in report.findings) == ("GD101", "confirmed")
    # The GPU is as usable as before.
    assert graphdoctor.analyze(tanh, torch.randn(8), device="cuda", strategies=()).verdict == "safe"
