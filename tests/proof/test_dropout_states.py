"""The random state of cuDNN's dropout: torch replaces it after seeds, and a graph keeps its address."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import graphdoctor
from graphdoctor.captured.obstacles import obstacles
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe import dropout_states
from graphdoctor.device.observe.dropout_states import DropoutStates
from graphdoctor.device.open import AnyDevice
from graphdoctor.device.real import WatchedDevice
from graphdoctor.graphs.capture import capture_graph
from graphdoctor.graphs.generator import generator_state, seed_generators, set_generator_state
from graphdoctor.pipeline import Setting, stages
from graphdoctor.proof.stage import prove_whole_step
from graphdoctor.record import Session, session
from graphdoctor.record.place import place
from graphdoctor.strategies.evidence import Studied
from graphdoctor.target import from_object
from graphdoctor.target.state.kinds import plain_values
from graphdoctor.target.state.snapshot import snapshot
from graphdoctor.values.captures import Verification
from graphdoctor.values.options import AnalyzeOptions


@torch.library.custom_op("double::_cudnn_rnn", mutates_args=("dropout_state",))
def rnn(x: torch.Tensor, dropout_state: torch.Tensor) -> torch.Tensor:
    """A double of cuDNN's operator: the state decides which elements are dropped, and each call advances it."""
    dropped = (x.flatten() * (torch.arange(x.numel()).to(x) + dropout_state) % 2).view_as(x)
    dropout_state.add_(1)
    return dropped


@lru_cache(maxsize=1)
def state_in_torch() -> torch.Tensor:
    """No object of the program leads to it."""
    return torch.zeros(1, device="cuda")


@pytest.fixture(autouse=True)
def nothing_known(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(session, "draws_in_rnns", lambda target, device: True)
    state_in_torch.cache_clear()
    dropout_states._LAST.clear()
    yield
    dropout_states._LAST.clear()


def drops(x: torch.Tensor) -> torch.Tensor:
    return rnn(x, state_in_torch())


def studied(device: AnyDevice, step: Callable[..., object], *given: torch.Tensor) -> Studied:
    target = place(from_object(step, *given), device)
    return stages.study(target, Setting(device, AnalyzeOptions(iterations=3, strategies=())))


def proof(session: Session) -> Verification:
    outcome, made = prove_whole_step(session)
    assert outcome.verification is not None, outcome
    if made is not None:
        made.release()
    return outcome.verification


def test_replays_draw_as_eager_does_from_a_state_that_only_the_operator_shows(
    device: EmulatedDevice,
) -> None:
    found = studied(device, drops, torch.rand(4, 4))
    assert found.recording.limits == ()
    assert list(obstacles(found)) == []
    assert "dropout_state" in found.session.target.roots
    assert proof(found.session).status == "verified"


def test_a_state_that_is_not_restored_is_no_proof(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DropoutStates, "rewound", lambda self: [])
    found = studied(device, drops, torch.rand(4, 4))
    assert any(
        "only a cache" in obstacle or "nor reached" in obstacle for obstacle in obstacles(found)
    )
    assert proof(found.session).status != "verified"


def test_a_study_leaves_the_state_as_it_was(device: EmulatedDevice) -> None:
    drops(torch.rand(4, 4, device="cuda"))
    before = state_in_torch().clone()
    assert before != 0
    found = studied(device, drops, torch.rand(4, 4))
    proof(found.session)
    assert torch.equal(state_in_torch(), before)


def test_a_graph_holds_the_state_of_its_capture(device: EmulatedDevice) -> None:
    found = studied(device, drops, torch.rand(4, 4))
    _, made = prove_whole_step(found.session)
    assert made is not None
    assert [each is state_in_torch() for each in made.graph.dropout_states] == [True]


class OfGpu(torch.Generator):
    """A double of a GPU's default generator, which must not be set: cuDNN would make a new dropout state."""

    def __init__(self) -> None:
        self.shared = torch.Generator()

    def graphsafe_get_state(self) -> torch.Generator:
        return self.shared

    def get_state(self) -> torch.Tensor:
        return self.shared.get_state()

    def set_state(self, state: torch.Tensor) -> Any:
        raise AssertionError("cuDNN makes a new dropout state")

    def manual_seed(self, seed: int) -> Any:
        raise AssertionError("cuDNN makes a new dropout state")


def test_generators_are_seeded_and_restored_without_a_new_dropout_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = OfGpu()
    monkeypatch.setattr(plain_values, "_PLACE", _OnlyOfGpu())
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    seed_generators(5)
    assert generator.shared.initial_seed() == 5
    begun, saved = generator_state(), snapshot({})
    torch.rand(3, generator=generator.shared)
    drawn = generator_state()
    assert not torch.equal(begun, drawn)
    saved.restore()
    assert torch.equal(generator_state(), begun)
    set_generator_state(drawn)
    assert torch.equal(generator_state(), drawn)


class _OnlyOfGpu:
    def __get__(self, generator: object, owner: object = None) -> torch.device:
        return torch.device("cuda" if isinstance(generator, OfGpu) else "cpu")


class Recurrent(nn.Module):
    """A language model as public examples have it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(50, 32)
        self.rnn = nn.LSTM(32, 32, 2, dropout=0.5)
        self.decoder = nn.Linear(32, 50)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        embedded = functional.dropout(self.encoder(words), 0.5)
        output, _ = self.rnn(embedded)
        return self.decoder(functional.dropout(output, 0.5))


class Training:
    def __init__(self, *, rate_decays: bool = False) -> None:
        torch.manual_seed(0)
        self.model = Recurrent().cuda().train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.rate_decays = rate_decays

    def step(self, words: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        logits = self.model(words[:-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), words[1:].flatten())
        loss.backward()
        self.optimizer.step()
        if self.rate_decays:
            self.optimizer.param_groups[0]["lr"] *= 0.5
        return loss.detach()


def words(seed: int = 0) -> torch.Tensor:
    return torch.randint(50, (9, 4), generator=torch.Generator().manual_seed(seed)).cuda()


def explained(found: Studied, verification: Verification) -> str:
    """All that a failure needs."""
    ops = [op.name for each in found.recording.captured for op in each.ops]
    return "\n".join(
        [
            f"{torch.__version__} {torch.cuda.get_device_name()}",
            f"verification: {verification}",
            f"findings: {[(f.rule, f.message) for f in found.diagnosis.findings]}",
            f"limits: {found.recording.limits}",
            f"roots: {list(found.session.target.roots)}",
            f"states: {[(s.shape, s.dtype, s.data_ptr()) for s in dropout_states._LAST.values()]}",
            f"operators: {[name for name in ops if 'rnn' in name or 'scalar' in name or 'random_' in name]}",
        ]
    )


@pytest.mark.gpu
def test_a_gpu_s_lstm_with_dropout_is_verified() -> None:
    training = Training()
    with WatchedDevice() as device:
        found = studied(device, training.step, words())
        verification = proof(found.session)
    why = explained(found, verification)
    assert verification.status == "verified", why
    assert found.diagnosis.findings == () or not list(found.diagnosis.findings), why
    names = {op.base_name for each in found.recording.captured for op in each.ops}
    assert "_cudnn_rnn" in names and "_local_scalar_dense" not in names, why
    assert list(obstacles(found)) == [], why


@pytest.mark.gpu
def test_a_frozen_learning_rate_does_not_hide_behind_a_gpu_s_dropout() -> None:
    training = Training(rate_decays=True)
    with WatchedDevice() as device:
        found = studied(device, training.step, words())
        verification = proof(found.session)
    assert verification.status == "wrong", explained(found, verification)


@pytest.mark.gpu
def test_without_the_state_s_contents_a_gpu_s_replays_draw_other_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DropoutStates, "rewound", lambda self: [])
    training = Training()
    with WatchedDevice() as device:
        found = studied(device, training.step, words())
        verification = proof(found.session)
    assert verification.status != "verified", explained(found, verification)


@pytest.mark.gpu
@pytest.mark.parametrize("is_held", [True, False])
def test_memory_of_a_state_that_torch_dropped_is_not_given_to_others(is_held: bool) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(32, 32, 2, dropout=0.5).cuda().train()
    x, side = torch.randn(8, 4, 32, device="cuda"), torch.cuda.Stream()
    states = [DropoutStates()]

    def warm_up() -> None:
        for _ in range(2):
            with states[0]:
                model(x)

    made = capture_graph(lambda: model(x)[0].detach(), side, warm_up=warm_up)
    (state,) = made.graph.dropout_states
    address, nbytes, start = state.data_ptr(), state.nbytes, state.clone()
    made.graph.replay()
    first = made.result.clone()
    state.copy_(start)
    if not is_held:
        made.graph.dropout_states = ()
    del state
    states.clear()
    dropout_states._LAST.clear()
    torch.manual_seed(1)
    model(x)  # torch has a new state now
    gc.collect()
    others = [torch.full((nbytes,), 255, dtype=torch.uint8, device="cuda") for _ in range(8)]
    with torch.cuda.stream(side):
        others += [torch.full((nbytes,), 255, dtype=torch.uint8, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    addresses = [hex(each.data_ptr()) for each in others]
    assert (hex(address) in addresses) == (not is_held), (hex(address), addresses)
    if is_held:
        made.graph.replay()
        assert torch.equal(made.result, first)


@pytest.mark.gpu
def test_a_captured_step_draws_on_as_eager_would_on_a_gpu() -> None:
    def losses(captures: bool) -> tuple[list[float], Any]:
        training = Training()
        step: Any = graphdoctor.capture(training.step) if captures else training.step
        return [float(step(words(seed))) for seed in range(12)], step

    (expected, _), (found, step) = losses(False), losses(True)
    assert step.replayed >= 8, step.explain()
    assert found == pytest.approx(expected, rel=1e-4), (found, expected, step.explain())
    torch.manual_seed(1)  # torch drops its dropout state with the next eager call
    nn.LSTM(8, 8, 2, dropout=0.5).cuda().train()(torch.rand(3, 2, 8, device="cuda"))
    before = step.replayed
    later = [float(step(words(seed))) for seed in range(3)]
    assert step.replayed == before + 3, step.explain()
    assert all(0 < loss < 10 for loss in later), later


@pytest.mark.gpu
def test_a_model_that_trains_with_an_lstm_has_graphs_on_a_gpu() -> None:
    torch.manual_seed(0)
    fast = graphdoctor.capture(Recurrent().cuda().train(), words(), mode="training")
    for seed in range(3):
        fast(words(seed)).sum().backward()
    assert fast.coverage > 0, fast.explain()
    assert not fast.fallbacks, fast.explain()
