"""Regions of a step, each replayed on the values of the other iterations."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace as changed

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.tape import Tape
from graphdoctor.diagnose.diagnose import diagnose
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.graphs.compare import Gap
from graphdoctor.graphs.region_run import Geometry, RegionRun
from graphdoctor.partition import Plan, PlannedRegion, partition
from graphdoctor.proof import regions
from graphdoctor.proof.regions import _beyond_noise, verify_regions
from graphdoctor.record import prepare, record
from graphdoctor.record.place import place
from graphdoctor.target import from_object
from graphdoctor.values.captures import CaptureOutcome
from graphdoctor.values.recording import Iteration
from tests.support.reports import REGION
from tests.support.whole_steps import line_of

Outcomes = tuple[CaptureOutcome, ...]
Change = Callable[[Plan, Sequence[Iteration]], tuple[Plan, Sequence[Iteration]]]


def outcomes(
    device: EmulatedDevice,
    step: Callable[[torch.Tensor], object],
    *,
    iterations: int = 3,
    change: Change | None = None,
) -> Outcomes:
    """What is said of the regions of a plan, which `change` may put in the place of the step's own."""
    target = place(from_object(step, torch.ones(4)), device)
    try:
        session = prepare(target, device, iterations=iterations)
        recording = record(session, progress=lambda doing: None)
        plan = partition(recording, diagnose(recording), profile=load_profile("h100"))
        captured: Sequence[Iteration] = recording.captured
        if change is not None:
            plan, captured = change(plan, captured)
        return verify_regions(session, captured, plan.regions)
    finally:
        target.close()


def everything(plan: Plan, captured: Sequence[Iteration]) -> tuple[Plan, Sequence[Iteration]]:
    """One region of all operators, whatever stands in its way."""
    spans = tuple((each.index, tuple(range(len(each.ops)))) for each in captured)
    region = changed(REGION, operators=len(captured[0].ops))
    whole = PlannedRegion(region, spans)
    return replace(plan, regions=(whole,)), captured


def only(found: Outcomes) -> Any:
    (outcome,) = found
    assert outcome.status == "captured" and outcome.verification is not None
    return outcome.verification


def reads_between(data: torch.Tensor) -> torch.Tensor:
    scaled = data * 2.0
    return (scaled + 1.0) * float(scaled.sum())


def test_each_region_is_replayed_on_every_later_iteration(device: EmulatedDevice) -> None:
    found = outcomes(device, reads_between)
    assert [one.scope for one in found] == ["region A", "region B"]
    assert [one.operators for one in found] == [3, 1]  # to the sum, and after it is read
    for outcome, tensors in zip(found, (3, 1), strict=True):
        verification = only((outcome,))
        assert (verification.status, verification.reason) == ("verified", "")
        assert (verification.replays, verification.tensors) == (2, tensors)
        assert (verification.method, verification.differences) == ("bitwise", ())


def test_an_iteration_alone_verifies_nothing(device: EmulatedDevice) -> None:
    for outcome in outcomes(device, reads_between, iterations=1):
        verification = only((outcome,))
        assert (verification.status, verification.replays) == ("not-verified", 0)
        assert verification.reason == "it ran in only one of the recorded iterations"


def growing() -> Callable[[torch.Tensor], torch.Tensor]:
    numbers = count(1)

    def step(data: torch.Tensor) -> torch.Tensor:
        return (data + 1.0) * next(numbers)  # <- grows

    return step


def test_a_replay_that_repeats_a_number_is_wrong_at_the_operator_that_took_it(
    device: EmulatedDevice,
) -> None:
    verification = only(outcomes(device, growing(), change=everything))
    assert (verification.status, verification.replays) == ("wrong", 2)
    assert verification.reason == "replay 1 computed something other than eager did"
    assert [one.replay for one in verification.differences] == [1, 2]
    first, second = verification.differences
    assert (first.tensor, first.operator) == ("the result of aten.mul.Tensor", "aten.mul.Tensor")
    assert first.location is not None and first.location.line == line_of(__file__, "grows")
    assert second.max_abs == 2 * first.max_abs > 0
    assert 0 < first.max_rel < second.max_rel


def test_one_replay_is_told_of_once_whatever_else_differs(device: EmulatedDevice) -> None:
    numbers = count(1)

    def step(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        number = next(numbers)
        return data * number, data + number

    verification = only(outcomes(device, step, change=everything))
    assert [one.operator for one in verification.differences] == ["aten.mul.Tensor"] * 2


def test_results_that_nobody_holds_leave_nothing_to_compare(device: EmulatedDevice) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        data * 2.0
        return data.view(2, 2)

    verification = only(outcomes(device, step, change=everything))
    assert verification.status == "not-verified"
    assert verification.reason == ("nothing that it writes is still alive at its end to compare")


def alternating(one: torch.Tensor | None, other: torch.Tensor) -> Callable[[torch.Tensor], object]:
    turns = count()

    def step(data: torch.Tensor) -> torch.Tensor:
        beside = (one, other)[next(turns) % 2]
        return data + (data if beside is None else beside)

    return step


def test_memory_that_is_shared_in_one_iteration_only_is_said(device: EmulatedDevice) -> None:
    step = alternating(None, torch.ones(4, device="cuda"))
    verification = only(outcomes(device, step, change=everything))
    assert verification.status == "not-verified"
    assert verification.reason == "its tensors share memory differently in other iterations"


def test_memory_of_another_size_is_said(device: EmulatedDevice) -> None:
    step = alternating(torch.ones(4, device="cuda"), torch.ones(8, device="cuda")[:4])
    verification = only(outcomes(device, step, change=everything))
    assert verification.status == "not-verified"
    assert verification.reason == "its tensors lie in memory of another size in other iterations"


def test_a_replay_that_fails_on_the_emulated_device_verifies_nothing(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an operator whose size follows from values, in a way that nothing here knows of."""

    def fail(self: Tape, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("The size of tensor a (216) must match the size of tensor b (210)\nat 0")

    monkeypatch.setattr(Tape, "replay", fail)
    found = only(outcomes(device, lambda data: data * 2 + 1, change=everything))
    assert (found.status, found.replays) == ("not-verified", 0)
    assert found.reason == (
        "its replay failed: The size of tensor a (216) must match the size of tensor b (210)"
    )


def test_a_step_that_does_not_repeat_itself_verifies_nothing(device: EmulatedDevice) -> None:
    def renamed(plan: Plan, captured: Sequence[Iteration]) -> tuple[Plan, Sequence[Iteration]]:
        ops = tuple(changed(op, name="aten.sub.Tensor") for op in captured[0].ops)
        return everything(plan, [changed(captured[0], ops=ops), *captured[1:]])

    verification = only(outcomes(device, lambda data: data + 1.0, change=renamed))
    assert verification.status == "not-verified"
    assert verification.reason == "the step did not repeat itself when it was run again"


@pytest.mark.parametrize("doubtful", [0, 1])
def test_what_only_a_fallback_computed_is_not_verified(
    doubtful: int, device: EmulatedDevice
) -> None:
    def doubted(plan: Plan, captured: Sequence[Iteration]) -> tuple[Plan, Sequence[Iteration]]:
        plan, captured = everything(plan, captured)
        last = captured[-1]
        ops = [*last.ops]
        ops[doubtful] = changed(ops[doubtful], fallback="a kernel of the CPU stood in")
        return plan, [*captured[:-1], changed(last, ops=tuple(ops))]

    verification = only(outcomes(device, lambda data: (data + 1.0) * 2.0, change=doubted))
    assert (verification.status, verification.replays) == ("not-verified", 2)
    assert verification.reason == "a kernel of the CPU stood in"


@pytest.mark.parametrize(
    ("replayed", "again", "is_kept", "strays"),
    [
        (1.5, 1.0, True, False),  # eager repeats itself, the replay does not
        (1.001, 1.001, False, False),  # eager itself is as far away
        (1.5, 1.001, True, False),
        (1.5, 1.5, False, True),  # as far away, and too far for noise
        (1.0 + 2**-23, 1.0, False, False),  # rounding
    ],
)
def test_what_eager_s_own_deviation_explains_is_no_difference(
    replayed: float, again: float, is_kept: bool, strays: bool
) -> None:
    part = (0, Geometry(0, (2,), (1,), torch.float32))
    run = RegionRun(None, after={part: torch.ones(2)})
    gap = Gap("", max_abs=replayed - 1.0, max_rel=replayed - 1.0, scale=1.0, eps=2**-23)
    kept = _beyond_noise({part: gap}, run, {part: torch.full((2,), again)})
    assert kept == ({part: gap} if is_kept else {}, strays)


def test_what_a_region_made_is_as_the_step_left_it_after_its_replays(
    device: EmulatedDevice, tmp_path: Path
) -> None:
    """A replay writes into the first iteration's memory, where Python may still look."""
    kept: list[tuple[torch.Tensor, float]] = []
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR)  # lists are put back

    def unseen_sum(tensor: torch.Tensor) -> float:
        with torch._C._DisableTorchDispatch():
            return float(tensor.sum())

    def step(data: torch.Tensor) -> torch.Tensor:
        scaled = data * 2.0
        for old, then in kept:
            os.write(log, b"same\n" if unseen_sum(old) == then else b"changed\n")
        kept.append((scaled, unseen_sum(scaled)))
        return (scaled + 1.0) * float(scaled.sum())

    try:
        found = outcomes(device, step)
        assert found and all(one.verification and one.verification.replays for one in found)
        assert set((tmp_path / "log").read_text().splitlines()) == {"same"}
    finally:
        os.close(log)


@pytest.mark.parametrize("is_held", [False, True])
def test_what_one_region_hands_to_another_is_put_back_only_where_python_holds_it(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    sizes: list[list[int]] = []
    find = regions._scratch_of

    def noted(firsts: Sequence[RegionRun]) -> set[int]:
        found = find(firsts)
        storages = {s._cdata: s for first in firsts for s in first.storages.values()}
        sizes.append(sorted(storages[address].nbytes() for address in found))
        return found

    monkeypatch.setattr(regions, "_scratch_of", noted)
    held: list[torch.Tensor] = []

    def step(data: torch.Tensor) -> torch.Tensor:
        handed_on = data * 2.0
        if is_held:
            held.append(handed_on)
        factor = float(data.sum())
        return (handed_on[:2] + 1.0) * factor

    found = outcomes(device, step)
    assert len(found) > 1
    assert all(one.verification and one.verification.status == "verified" for one in found)
    assert sizes[0] == [] and all((16 in each) is not is_held for each in sizes[1:])


def test_a_replay_that_is_one_rounding_off_is_wrong_on_the_emulated_device(
    device: EmulatedDevice,
) -> None:
    """It computes as eager does, bit for bit: no deviation of eager's own explains anything there."""
    numbers = count(0)

    def step(data: torch.Tensor) -> torch.Tensor:
        return data * (1.0 + next(numbers) * torch.finfo(torch.float32).eps)

    verification = only(outcomes(device, step, change=everything))
    assert verification.status == "wrong"
    assert len(verification.differences) == verification.replays == 2


def test_memory_that_only_the_tape_holds_is_not_copied_aside(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    clone = torch.UntypedStorage.clone

    def noted(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        copied.append(storage.nbytes())
        return clone(storage)

    monkeypatch.setattr(torch.UntypedStorage, "clone", noted)
    found = only(outcomes(device, lambda x: x.sum() * 2.0, change=everything))
    assert (found.status, found.replays) == ("verified", 2)
    assert copied == []


def test_memory_that_the_region_makes_larger_is_filled_as_far_as_it_went(
    device: EmulatedDevice,
) -> None:
    """`x.data.new().resize_(...)`, as weight-dropped language models draw their masks."""

    def masked(data: torch.Tensor) -> object:
        mask = data.data.new().resize_(4).bernoulli_(0.5)
        return data * mask, mask

    assert only(outcomes(device, masked, change=everything)).status == "verified"


def test_the_workspace_that_a_recurrent_layer_leaves_for_its_backward_is_not_compared(
    device: EmulatedDevice,
) -> None:
    layer = torch.nn.LSTM(4, 8)

    def forward(data: torch.Tensor) -> object:
        return layer(data.view(1, 1, 4))

    assert only(outcomes(device, forward, change=everything)).status == "verified"


def test_memory_that_a_region_leaves_unwritten_is_not_compared(device: EmulatedDevice) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        kept = data.new_empty(2, 4)
        rows = kept.view(2, 4)
        rows[0] = data * 2.0
        scale = float(rows[0].sum())
        rows[1] = data * scale
        return kept + 1.0

    first, second = outcomes(device, step)
    assert [only((each,)).status for each in (first, second)] == ["verified", "verified"]
    assert only((first,)).tensors == 1  # the row that was written


def test_memory_of_torch_empty_that_an_operator_wrote_is_compared(device: EmulatedDevice) -> None:
    numbers = count(0)

    def step(data: torch.Tensor) -> torch.Tensor:
        kept = torch.empty_like(data)
        torch.add(data, float(next(numbers)), out=kept)
        return kept

    assert only(outcomes(device, step, change=everything)).status == "wrong"


def test_memory_that_an_operator_gets_as_a_storage_is_what_it_was_before_the_region(
    device: EmulatedDevice,
) -> None:
    """As an RNN makes one tensor of its weights' memory, which a later region changes."""
    weight = torch.ones(4, device="cuda")

    def step(data: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(0, device="cuda").set_(weight.untyped_storage(), 0, (4,), (1,))
        seen = data.cuda() * whole
        weight.add_(float(seen.sum()))
        return seen

    for outcome in outcomes(device, step):
        assert only((outcome,)).status == "verified", only((outcome,))
