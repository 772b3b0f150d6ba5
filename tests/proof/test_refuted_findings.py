"""Whether the machine's word stands against a finding: a capture that succeeds refutes what says it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
import torch
from msgspec.structs import replace

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.tape import Tape
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.graphs.cause import Refusal
from graphdoctor.partition import partition
from graphdoctor.proof import regions, stage
from graphdoctor.proof.stage import Captured, _region, capture_and_verify
from graphdoctor.record import prepare, record
from graphdoctor.record.place import place
from graphdoctor.rules import ALL_RULES
from graphdoctor.rules.rule import Hit, RecordingRule, Rule
from graphdoctor.target import from_object
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Recording
from tests.support import builders
from tests.support.builders import tensor


class Wrong(RecordingRule):
    """Says of every tanh that no capture takes it."""

    id = "GD199"
    name = "wrong"
    effect = "capture-fails"
    fix = "Nothing."
    evidence = "None: this rule is wrong."
    first_iteration = 0
    operators: tuple[str, ...] = ("aten.tanh.default",)

    @staticmethod
    def bad() -> object:
        raise NotImplementedError

    @staticmethod
    def good() -> object:
        raise NotImplementedError

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured[self.first_iteration :]:
            for index, op in enumerate(iteration.ops):
                if op.name in self.operators:
                    yield Hit(iteration.index, index, "tanh is refused", op.location)


class WrongAlone(Wrong):
    """The same, as a table of operators says it."""

    def check(self, recording: Recording) -> Iterator[Hit]:
        for hit in super().check(recording):
            yield replace(hit, refused_alone=True)


class WrongLater(Wrong):
    """The same, of later iterations only: what is captured is the first one."""

    first_iteration = 1


def tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


def reading(x: torch.Tensor) -> torch.Tensor:
    bent = torch.tanh(x)
    return bent * float(x.sum())


def reading_on_one_line(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * float(x.sum())  # the refusal of the whole step is here too


def tried(
    step: Callable[..., object],
    rule: type[RecordingRule],
    *,
    by_gpu: bool,
    others: Sequence[type[Rule]] = ALL_RULES,
) -> Captured:
    with EmulatedDevice() as device:
        target = place(from_object(lambda: (step, (torch.randn(8),))), device)
        session = prepare(target, device, iterations=3)
        recording = record(session, progress=lambda doing: None)
        diagnosis = diagnose(recording, [*others, rule])
        assert rule.id in {found.rule for found in diagnosis.findings}
        cut = partial(partition, recording, profile=load_profile("h100"))
        with pytest.MonkeyPatch.context() as patch:
            if by_gpu:  # which this machine may lack: what only one can measure is left out
                patch.setattr(device, "kind", "cuda")
                patch.setattr(stage, "_meter", lambda session: None)
            captured = capture_and_verify(session, recording, diagnosis, cut(diagnosis), cut=cut)
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


@pytest.fixture
def gpu_takes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Stands for a GPU that captures every part, but for operators that are in the list."""
    refused: list[str] = []

    def graph_of(tape: Tape, prepare: Callable[[], None]) -> Callable[[], object] | Refusal:
        if any(entry.facts.name in refused for entry in tape.entries):
            return Refusal("the host waited for the device")
        return tape.replay

    monkeypatch.setattr(regions, "_graph_of", graph_of)
    yield refused


def test_a_flagged_operator_that_the_gpu_captures_by_itself_is_no_finding(
    gpu_takes: list[str],
) -> None:
    captured = tried(reading, WrongAlone, by_gpu=True)
    assert captured.outcomes[0].status == "refused"
    assert [found.rule for found in captured.refuted] == ["GD199"]
    (limit,) = captured.limits
    assert limit.endswith(
        "is left out: this GPU captured only its operator, and its replays were right."
    )
    assert "GD199" not in {
        rule for each in captured.plan.regions for rule in each.region.blocked_by
    }
    assert 0 in captured.plan.regions[0].ops_in(0)  # the first operator, tanh


def test_a_flagged_operator_that_the_gpu_refuses_by_itself_stays_a_finding(
    gpu_takes: list[str],
) -> None:
    gpu_takes.append("aten.tanh.default")
    captured = tried(reading, WrongAlone, by_gpu=True)
    assert (captured.refuted, captured.limits) == ((), ())
    assert "GD199" in {rule for each in captured.plan.regions for rule in each.region.blocked_by}


def test_what_is_said_of_more_than_the_operator_is_not_tried_by_itself(
    gpu_takes: list[str],
) -> None:
    assert tried(reading, Wrong, by_gpu=True).refuted == ()


def test_the_line_where_the_whole_step_was_refused_is_not_cleared(gpu_takes: list[str]) -> None:
    assert tried(reading_on_one_line, WrongAlone, by_gpu=True).refuted == ()


def test_a_line_is_not_cleared_by_one_of_its_operators_where_another_only_reads(
    gpu_takes: list[str],
) -> None:
    class OfReadsToo(WrongAlone):
        operators = (*Wrong.operators, "aten._local_scalar_dense.default")

    def reading_twice(x: torch.Tensor) -> torch.Tensor:
        total = float(x.sum())  # the refusal of the whole step
        return torch.tanh(x) * (total + float(x.mean()))

    captured = tried(reading_twice, OfReadsToo, by_gpu=True, others=())
    assert captured.outcomes[0].status == "refused"
    assert captured.refuted == ()


def test_the_emulated_device_tries_nothing_by_itself(gpu_takes: list[str]) -> None:
    assert tried(reading, WrongAlone, by_gpu=False).refuted == ()


@pytest.mark.gpu
def test_on_a_gpu_a_wrong_finding_beside_a_true_one_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnose, "__defaults__", ([*ALL_RULES, WrongAlone],))
    report = graphdoctor.analyze(reading, torch.randn(8), device="cuda", strategies=())
    assert "GD199" not in {found.rule for found in report.findings}
    assert any("GD199 wrong" in limit and "only its operator" in limit for limit in report.limits)
    assert ("GD101", "confirmed") in {(f.rule, f.certainty) for f in report.findings}


@pytest.mark.gpu
def test_on_a_gpu_an_operator_that_waits_stays_a_finding_beside_another() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        total = float(x.sum())
        return torch.linalg.inv_ex(x @ x.T).inverse * total + x[x > 0].sum()

    report = graphdoctor.analyze(step, torch.randn(8, 8), device="cuda", strategies=())
    assert {"GD101", "GD106"} <= {found.rule for found in report.findings}


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


def test_the_operators_of_a_finding_are_tried_in_each_iteration_that_has_them() -> None:
    ops = [builders.op("aten.mul.Tensor", [tensor(0, 4)], [tensor(1, 4)]) for _ in range(4)]
    captured = [builders.iteration(ops, index=at) for at in range(3)]
    place = Location("model.py", 7)
    hits = [
        Hit(at, index, "refused", place, phase="backward", operator="aten.mul")
        for at, index in ((0, 1), (2, 3), (2, 2))
    ]
    planned = _region(builders.recording(*captured), hits)
    assert [list(planned.ops_in(at)) for at in range(3)] == [[1], [], [2, 3]]
    region = planned.region
    assert (region.name, region.phases, region.first) == ("aten.mul", ("backward",), place)
    assert (region.operators, region.launches, region.iterations) == (1, 1, (0, 2))
