"""Trying one strategy: every way that it can go is a row, and the step is afterwards as it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.estimate import estimate, launches
from graphdoctor.strategies import timing, trial
from graphdoctor.strategies.recommend import recommend
from graphdoctor.strategies.strategy import Known, Strategy
from graphdoctor.strategies.trial import Terms
from graphdoctor.target import Inputs, Target
from graphdoctor.target.state.snapshot import named_tensors
from tests.proof.test_in_one_order import scattered
from tests.support import fake_strategies as fakes
from tests.support.strategy_rows import (
    PROFILE,
    TERMS,
    CalledCuda,
    a_session,
    measurement,
    on_a_gpu,
    session_of,
    tried,
    try_strategy,
)


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as emulated:
        yield emulated


def test_what_is_right_is_verified_bit_for_bit_and_predicted_before_it_is_built(
    device: EmulatedDevice,
) -> None:
    session, known = a_session(device)
    row = try_strategy(fakes.Fake(), session, known, terms=TERMS)
    assert row.status == "verified"
    assert row.verification is not None
    assert row.verification.method == "bitwise"
    assert row.verification.replays == 3
    regions = fakes.Fake().regions(known)
    assert row.predicted == estimate(known.iteration, PROFILE, regions).speedup
    assert row.captured_share == 1.0
    assert row.launches_eager == sum(map(launches, known.iteration.ops))
    assert (row.measurement, row.prepare_s, row.extra_bytes) == (None, None, None)
    assert row.code == "fast = step\n"
    assert "stops advancing" not in row.reason


def test_a_graph_is_verified_from_the_state_of_its_capture_and_told_for_its_stopped_python(
    device: EmulatedDevice,
) -> None:
    row = tried(device, fakes.OneGraph())
    assert row.status == "verified"
    assert "host state stops advancing (counted.calls)" in row.reason


@pytest.mark.parametrize(
    ("strategy", "status"),
    [(fakes.Fake(), "verified"), (fakes.Wrong(), "wrong"), (fakes.BuiltOnce(), "not-verified")],
)
def test_a_step_that_is_far_away_from_itself_is_built_again_with_deterministic_algorithms(
    device: EmulatedDevice, strategy: Strategy, status: str
) -> None:
    """As a CNN whose weight gradients cuDNN adds in another order each time."""
    weight = torch.rand(64, device="cuda") + 0.5

    def step(data: torch.Tensor) -> torch.Tensor:
        return scattered(data * weight)

    def data() -> Inputs:
        return Inputs((torch.rand(64, device="cuda") + 0.5,))

    target = Target("step", __file__, "test", "inference", step, data, {"weight": weight})
    session, known = session_of(target, device)
    assert try_strategy(strategy, session, known, terms=TERMS).status == status


def test_what_is_wrong_is_called_wrong_and_gives_no_code(device: EmulatedDevice) -> None:
    row = tried(device, fakes.Wrong())
    assert (row.status, row.code) == ("wrong", "")
    assert row.verification is not None
    assert row.verification.differences[0].tensor == "output"
    assert row.reason.startswith("output differs from eager's in replay 1")


def test_what_rounds_differently_is_verified_with_its_deviation_told(
    device: EmulatedDevice,
) -> None:
    row = tried(device, fakes.Rounding())
    assert row.status == "verified"
    assert row.deviation == pytest.approx(3e-5, rel=0.1)
    assert "at most 3e-05 of their magnitude" in row.reason


def test_a_comparator_with_half_its_digits_off_is_wrong(device: EmulatedDevice) -> None:
    class FarOff(fakes.Rounding):
        def change(self, outputs: Any) -> Any:
            return outputs * 1.01

    row = tried(device, FarOff())
    assert row.status == "wrong"
    assert row.deviation == pytest.approx(0.01, rel=0.1)


def test_other_random_numbers_are_no_error_and_no_proof(device: EmulatedDevice) -> None:
    class Draws(fakes.Rounding):
        def change(self, outputs: Any) -> Any:
            return outputs * torch.rand((), device="cuda")

    session, known = a_session(device)
    random = msgspec.structs.replace(
        known.iteration.ops[0], tags=(*known.iteration.ops[0].tags, "nondeterministic_seeded")
    )
    iteration = msgspec.structs.replace(known.iteration, ops=(random, *known.iteration.ops[1:]))
    known = Known(known.mode, known.roots, (), (), iteration)
    row = try_strategy(Draws(), session, known, terms=TERMS)
    assert row.status == "not-verified"
    assert "draws random numbers" in row.reason


def test_attention_that_drops_nothing_is_no_excuse(device: EmulatedDevice) -> None:
    class FarOff(fakes.Rounding):
        def change(self, outputs: Any) -> Any:
            return outputs * 1.01

    session, known = a_session(device)
    attention = msgspec.structs.replace(
        known.iteration.ops[0],
        name="aten._scaled_dot_product_flash_attention.default",
        args=(),
        kwargs=(("dropout_p", 0.0),),
        tags=("nondeterministic_seeded",),
    )
    iteration = msgspec.structs.replace(known.iteration, ops=(attention, *known.iteration.ops[1:]))
    known = Known(known.mode, known.roots, (), (), iteration)
    assert try_strategy(FarOff(), session, known, terms=TERMS).status == "wrong"


@pytest.mark.parametrize(
    ("strategy", "status", "words"),
    [
        (fakes.Unfit(), "unfit", "it takes inference only"),
        (fakes.Refusing(), "refused", "the step has no optimizer"),
        (fakes.Synchronizing(), "refused", "the host waited for the device"),
        (fakes.Greedy(), "failed", "memory ran out"),
        (fakes.Broken(), "failed", "KeyError: 'module1'"),
        (fakes.BreaksInCall(), "failed", "ZeroDivisionError: division by zero"),
        (fakes.Compiling(), "planned", "trying it takes a real GPU"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_does_not_come_about_is_a_row_with_the_cause(
    device: EmulatedDevice, strategy: Strategy, status: str, words: str
) -> None:
    row = tried(device, strategy)
    assert row.status == status
    assert words in row.reason
    assert row.strategy == strategy.name


@pytest.mark.parametrize(
    "strategy",
    [
        fakes.Fake(),
        fakes.Wrong(),
        fakes.Spoiling(),
        fakes.Synchronizing(),
        fakes.BreaksInCall(),
        fakes.OneGraph(),
    ],
    ids=lambda value: value.name,
)
def test_state_is_afterwards_as_before_whatever_happens(
    device: EmulatedDevice, strategy: Strategy
) -> None:
    session, known = a_session(device)
    session.start.restore()
    before = {path: t.clone() for path, t in named_tensors(session.target.roots).items()}
    generator = torch.get_rng_state()
    calls = session.target.roots["counted"].calls
    stream = torch.cuda.current_stream()
    try_strategy(strategy, session, known, terms=TERMS)
    after = named_tensors(session.target.roots)
    assert after.keys() == before.keys()
    assert all(torch.equal(before[path], after[path]) for path in before)
    assert session.target.roots["counted"].calls == calls
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.cuda.current_stream() == stream


def test_what_was_built_is_given_back(device: EmulatedDevice) -> None:
    for strategy in (fakes.Fake(), fakes.Wrong(), fakes.BreaksInCall()):
        tried(device, strategy)
        assert strategy.built.is_released


def test_where_the_emulation_guessed_right_answers_are_no_proof(device: EmulatedDevice) -> None:
    session, known = a_session(device)
    guessed = msgspec.structs.replace(known.iteration.ops[0], fallback="the kernel was not run")
    iteration = msgspec.structs.replace(known.iteration, ops=(guessed, *known.iteration.ops[1:]))
    known = Known(known.mode, known.roots, (), (), iteration)
    row = try_strategy(fakes.Fake(), session, known, terms=TERMS)
    assert (row.status, row.reason, row.code) == ("not-verified", "the kernel was not run", "")


def test_on_a_gpu_a_row_has_times_memory_and_what_was_predicted(device: EmulatedDevice) -> None:
    session, known = a_session(device)
    session = replace(session, device=CalledCuda(device))
    terms = Terms(PROFILE, measure_s=0.05)
    row = try_strategy(fakes.Fake(), session, known, terms=terms)
    assert row.verification is not None
    assert row.verification.method == "within eager's own deviation"
    assert row.status == "verified"
    assert row.measurement is not None
    assert row.measurement.blocks >= 6
    assert row.predicted is not None
    assert row.prepare_s is not None and row.prepare_s > 0
    assert (row.extra_bytes, row.peak_bytes) == (0, 0)  # the emulated device's allocator
    assert row.launches is None  # no kernel runs here for a profiler to see
    wrong = try_strategy(fakes.Wrong(), session, known, terms=terms)
    assert (wrong.status, wrong.measurement) == ("wrong", None), wrong
    assert wrong.prepare_s is not None


def test_a_comparator_that_draws_other_numbers_is_timed_and_stays_unverified(
    device: EmulatedDevice,
) -> None:
    class Draws(fakes.Rounding):
        def change(self, outputs: Any) -> Any:
            return outputs * torch.rand((), device="cuda")

    row = on_a_gpu(device, Draws(), is_random=True)
    assert (row.status, row.code, row.deviation) == ("not-verified", "", None)
    assert row.measurement is not None
    advice = recommend((row,), ())
    assert advice is not None
    assert advice.strategy == "none"


@pytest.mark.parametrize(
    ("note", "share", "reason"),
    [
        ("", 0.0, "torch launched no part of it through CUDA graphs, and did not say why"),
        ("torch ran 1 graph without CUDA graphs: mutated inputs", 0.0, "mutated inputs"),
        ("", 0.9, ""),
    ],
)
def test_a_way_of_graphs_without_a_graph_says_why(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, note: str, share: float, reason: str
) -> None:
    class Graphs(fakes.Rounding):
        has_graphs = True

        def build(self, session: Any, known: Known) -> Any:
            built = super().build(session, known)
            built.note = note
            return built

    seen = timing.Seen(launches=40.0, busy_share=0.5, graphed_share=share)
    timed = timing.Timed(measurement(0.4, 0.5, 0.6), seen, seen)
    monkeypatch.setattr(trial, "time_built", lambda *_, **__: timed)
    row = on_a_gpu(device, Graphs())
    assert (row.status, row.captured_share) == ("verified", share)
    assert row.reason.endswith(reason)
    assert ("CUDA graphs" in row.reason) == bool(reason)


def test_a_plan_and_a_note_become_part_of_the_row(device: EmulatedDevice) -> None:
    class Planned(fakes.Fake):
        def plan(self, known: Known) -> str:
            return "graph 1: all of it"

        def build(self, session: Any, known: Known) -> Any:
            built = super().build(session, known)
            built.note = "one graph was made"
            return built

    row = tried(device, Planned())
    assert row.plan == "graph 1: all of it"
    assert row.reason.endswith("bit for bit; one graph was made")
