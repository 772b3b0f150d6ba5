"""Recorded eager runs stand for an eager twin only where it would be these very runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.proof.stage import prove_whole_step
from graphdoctor.proof.twins import EagerRuns
from graphdoctor.record import prepare
from graphdoctor.record.place import place
from graphdoctor.record.session import Session
from graphdoctor.target import from_object
from graphdoctor.target.state.snapshot import snapshot
from graphdoctor.values.captures import Verification
from tests.support.whole_steps import ScaledLoss


@pytest.fixture
def session() -> Iterator[Session]:
    with EmulatedDevice() as device:
        target = from_object(lambda data: data * 2.0, torch.tensor([0.3, -1.2, 0.7]))
        try:
            yield prepare(target, device, iterations=3)
        finally:
            target.close()


def ran(session: Session, times: int) -> EagerRuns:
    runs = EagerRuns(session)
    for index in range(times):
        inputs = session.inputs(index)
        runs.look(inputs, session.call(inputs))
    return runs


def test_all_iterations_from_the_session_s_start_are_the_twin(session: Session) -> None:
    count = len(session.batches)
    assert count > 1
    assert ran(session, count).are_of(session.start, session.batches)


def test_fewer_runs_other_inputs_or_another_start_are_none(session: Session) -> None:
    count = len(session.batches)
    runs = ran(session, count)
    assert not ran(session, count - 1).are_of(session.start, session.batches)
    assert not runs.are_of(session.start, session.batches[:-1])
    assert not runs.are_of(session.start, [session.inputs(index) for index in range(count)])
    assert not runs.are_of(snapshot(session.target.roots), session.batches)


def test_each_run_has_a_digest_of_what_it_left_behind(session: Session) -> None:
    runs = ran(session, 2)
    assert len(runs.digests) == len(runs.hosts) == 2
    again = ran(session, 2)
    assert again.digests == runs.digests
    assert runs.digests[0] != runs.digests[1]  # other inputs, other outputs


class CountedCalls(torch.nn.Module):
    """Adds 1 to a tensor of its own for each call, on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.count += 1.0
        return data * self.count


@pytest.mark.parametrize(("model", "status"), [(CountedCalls, "verified"), (ScaledLoss, "wrong")])
def test_replays_are_held_against_the_recorded_runs(
    model: type[torch.nn.Module], status: str
) -> None:
    with EmulatedDevice() as device:
        target = place(from_object(model(), torch.tensor([0.3, -1.2, 0.7])), device)
        try:
            session = prepare(target, device, iterations=3)
            runs = ran(session, len(session.batches))
            outcome, graph = prove_whole_step(session, ran=runs)
        finally:
            target.close()
    assert isinstance(outcome.verification, Verification)
    assert outcome.verification.status == status, outcome.verification
    assert (graph is not None) == (status == "verified")
