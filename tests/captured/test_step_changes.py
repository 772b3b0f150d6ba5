"""`capture()` of a training step: what the program changes, reads or raises between steps is as in eager."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.pipeline import stages
from graphdoctor.proof.stage import prove_whole_step
from tests.support.captured_models import in_eager_and_captured

Found = tuple[list[torch.Tensor], nn.Module]
Wrap = Callable[[Any], Any]


def _x(seed: int, *shape: int) -> torch.Tensor:
    drawn = torch.randn(*(shape or (4, 6)), generator=torch.Generator().manual_seed(seed))
    return drawn.cuda()


def _model() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return train_step


def the_caller_steps(wrap: Wrap) -> Found:
    """The step accumulates gradients; the caller clips them, steps and clears them."""
    model, optimizer = _model()

    def add_gradients(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        return loss

    step, found = wrap(add_gradients), []
    for i in range(16):
        found.append(step(_x(i)))
        if i % 3 == 2:
            found.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).detach())
            optimizer.step()
            optimizer.zero_grad()
    return found, model


def the_caller_reads_gradients(wrap: Wrap) -> Found:
    model, optimizer = _model()
    step, found = wrap(_step(model, optimizer)), []
    for i in range(10):
        step(_x(i))
        found += [parameter.grad.norm() for parameter in model.parameters()]
        if i >= 6:
            optimizer.zero_grad(set_to_none=i % 2 == 0)
    return found, model


def weights_are_frozen(wrap: Wrap) -> Found:
    model, optimizer = _model()
    step, found = wrap(_step(model, optimizer)), []
    for i in range(12):
        if i == 7:
            model[0].requires_grad_(False)
        found.append(step(_x(i)))
    return found, model


def the_mode_changes(wrap: Wrap) -> Found:
    """Evaluation between training calls of the same form, through the same function."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).cuda()
    step, found = wrap(_step(model, torch.optim.SGD(model.parameters(), lr=0.1))), []
    for i in range(16):
        model.train(i < 8 or i > 13)
        found.append(step(_x(i)))
    return found, model


def training_resumes(wrap: Wrap) -> Found:
    model, optimizer = _model()
    step, found = wrap(_step(model, optimizer)), []
    saved = io.BytesIO()
    for i in range(14):
        found.append(step(_x(i)))
        if i == 5:
            torch.save((model.state_dict(), optimizer.state_dict()), saved)
        if i == 8:
            saved.seek(0)
            weights, state = torch.load(saved)
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
    return found, model


def the_state_is_emptied(wrap: Wrap) -> Found:
    """As between stages of a training: the next step starts new averages, and graphs serve the steps after it."""
    model, optimizer = _model()
    step, found = wrap(_step(model, optimizer)), []
    for i in range(14):
        if i == 6:
            optimizer.state.clear()
        if i == 10:
            optimizer.state[model[0].weight] = {}
        found.append(step(_x(i)))
    return found, model


def a_call_raises(wrap: Wrap) -> Found:
    model, optimizer = _model()
    step, found = wrap(_step(model, optimizer)), []
    for i in range(12):
        if i in (1, 3, 6, 9):
            with pytest.raises(RuntimeError, match="shapes"):
                step(_x(i, 4, 5))
        found.append(step(_x(i)))
    return found, model


def a_group_is_added(wrap: Wrap) -> Found:
    model, optimizer = _model()
    other = nn.Linear(6, 1).cuda()

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (model(x) + other(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step, found = wrap(train_step), []
    for i in range(12):
        if i == 7:
            optimizer.add_param_group({"params": other.parameters(), "lr": 0.1})
        found.append(step(_x(i)))
    return found, model


def the_caller_runs_backward(wrap: Wrap) -> Found:
    """A function that returns a loss is no training step: it stays eager, with its autograd graph."""
    model, optimizer = _model()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        return loss

    step, found = wrap(loss_of), []
    for i in range(8):
        optimizer.zero_grad()
        loss = step(_x(i))
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return found, model


def a_scale_overflows(wrap: Wrap) -> Found:
    """A GradScaler in float16 that first skips steps; gradients are unscaled and clipped."""
    model, optimizer = _model()
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24, growth_interval=3)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss: torch.Tensor = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    step = wrap(train_step)
    found = [step(30 * _x(i)) for i in range(14)]
    return [*found, torch.tensor(scaler.get_scale())], model


def a_weight_is_assigned(wrap: Wrap) -> Found:
    model, optimizer = _model()
    weight = 1.0

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (model(x) * weight).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step, found = wrap(train_step), []
    for i in range(10):
        weight = 1.0 if i < 7 else 0.25
        found.append(step(_x(i)))
    return found, model


def float_arguments_change(wrap: Wrap) -> Found:
    """A loss weight and a temperature, one of which is the same in the first calls."""
    model, optimizer = _model()

    def train_step(x: torch.Tensor, weight: float, *, temperature: float) -> torch.Tensor:
        optimizer.zero_grad()
        y = model(x) / temperature
        loss: torch.Tensor = (1 - weight) * y.square().mean() + weight * y.abs().mean()
        loss.backward()
        optimizer.step()
        return loss

    step, found = wrap(train_step), []
    for i in range(14):
        found.append(step(_x(i), 0.9**i, temperature=2.0 if i < 9 else 2.0 + i))
    return found, model


def float_attributes_change(wrap: Wrap) -> Found:
    """A loss weight in an attribute changes after the capture; the step does not read the other one."""
    model, optimizer = _model()

    class Settings:
        weight, seconds = 1.0, 0.0

    settings = Settings()
    settings.weight, settings.seconds = 1.0, 0.5

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = settings.weight * model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step, found = wrap(train_step), []
    for i in range(14):
        settings.seconds *= 1.5
        settings.weight = 1.0 if i < 6 else 0.9**i
        found.append(step(_x(i)))
    assert isinstance(settings.weight, float)
    return found, model


DECAY, SHARE = 0.9, 0.5


def follow(average: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast, 1 - DECAY)


def add_share(average: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
            slow.add_(fast, alpha=SHARE)


def weight_decay_follows_a_schedule(wrap: Wrap) -> Found:
    """As DINO has it: of two groups of an AdamW, one decays, with the learning rate of another schedule."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
    kept = {"params": [model[0].bias, model[2].bias], "weight_decay": 0.0}
    decayed = {"params": [model[0].weight, model[2].weight]}
    optimizer = torch.optim.AdamW([decayed, kept], lr=1e-2, weight_decay=0.1)
    step, found = wrap(_step(model, optimizer)), []
    for i in range(14):
        optimizer.param_groups[0]["weight_decay"] = 0.1 + 0.2 * i
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + i) / 14
        found.append(step(_x(i)))
        assert type(optimizer.param_groups[0]["weight_decay"]) is float
    return found, model


def a_float_that_no_tensor_replaces(wrap: Wrap) -> Found:
    """`alpha` is read on the host: calls with another value than the captured one are eager."""
    global SHARE
    model, optimizer = _model()
    average, SHARE = copy.deepcopy(model), 0.5

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        add_share(average, model)
        return loss

    step, found = wrap(train_step), []
    for i in range(14):
        SHARE = 0.5 if i % 7 else 0.25 + i / 100
        found.append(step(_x(i)))
    return found, average


def float_variables_change(wrap: Wrap) -> Found:
    """A decay in a global that a helper reads, and a loss weight in a variable of the function around."""
    global DECAY
    model, optimizer = _model()
    average, weight = copy.deepcopy(model), 1.0

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = weight * model(x).square().mean()
        loss.backward()
        optimizer.step()
        follow(average, model)
        return loss

    step, found = wrap(train_step), []
    for i in range(16):
        weight = 1.0 if i < 7 else 0.8**i
        DECAY = min(0.9, (1 + i) / (4 + i))
        found.append(step(_x(i)))
    assert type(weight) is float and type(DECAY) is float
    return found, average


def a_float_attribute_is_no_tensor(wrap: Wrap) -> Found:
    """No operator shows that the step computes something else with a tensor in the attribute."""
    model, optimizer = _model()

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        scale = model.scale if isinstance(model.scale, float) else 1.0
        loss: torch.Tensor = (scale * model(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step, found = wrap(train_step), []
    for i in range(10):
        model.scale = 0.5 if i < 2 else 0.25  # type: ignore[assignment]
        found.append(step(_x(i)))
    return found, model


def a_float_is_no_tensor(wrap: Wrap) -> Found:
    """No operator shows that the step computes something else with a tensor."""
    model, optimizer = _model()

    def train_step(x: torch.Tensor, weight: object) -> torch.Tensor:
        optimizer.zero_grad()
        scale = weight if isinstance(weight, float) else 1.0
        loss: torch.Tensor = (scale * model(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step, found = wrap(train_step), []
    for i in range(14):
        found.append(step(_x(i), 0.5 if i % 2 else 0.25))
    return found, model


class Masked(nn.Module):
    """Makes its mask where the batch has another length than the one before, as word_language_model does."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.inner, self.device, self.mask = nn.Linear(6, 1), device, torch.Tensor()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask.size(0) != len(x):
            self.mask = torch.ones(len(x), len(x), device=self.device).tril().to(x.device)
        return self.mask @ self.inner(x)


def _of_lengths(wrap: Wrap, device: str, *lengths: int) -> Found:
    """Three epochs; after each, a validation of another length; before the last, another mask of equal size."""
    model = Masked(device).cuda()
    step = wrap(_step(model, torch.optim.SGD(model.parameters(), lr=1e-2)))
    found = []
    for epoch in range(3):
        found += [step(_x(number, length, 6)) for number, length in enumerate(lengths)]
        with torch.no_grad():
            found.append(model(_x(epoch, 2, 6)))
        if epoch == 1:
            model.mask = torch.full((4, 4), 0.5, device="cuda")
    return found, model


def the_last_batch_is_shorter(wrap: Wrap) -> Found:
    return _of_lengths(wrap, "cpu", 4, 4, 4, 4, 4, 4, 4, 3)


def the_last_batch_is_shorter_for_a_mask_of_the_gpu(wrap: Wrap) -> Found:
    return _of_lengths(wrap, "cuda", 4, 4, 4, 4, 4, 4, 4, 3)


def each_batch_has_another_length(wrap: Wrap) -> Found:
    return _of_lengths(wrap, "cuda", 4, 3, 4, 3, 4, 3, 4, 3)


@pytest.mark.parametrize(
    ("loop", "replays"),
    [
        (the_last_batch_is_shorter, 16),
        (the_last_batch_is_shorter_for_a_mask_of_the_gpu, 17),
        (each_batch_has_another_length, 9),
        (float_arguments_change, 9),
        (a_float_is_no_tensor, 6),
        (float_attributes_change, 11),
        (float_variables_change, 13),
        (a_float_that_no_tensor_replaces, 9),
        (weight_decay_follows_a_schedule, 11),
        (a_float_attribute_is_no_tensor, 6),
        (the_caller_steps, 13),
        (the_caller_reads_gradients, 7),
        (weights_are_frozen, 4),
        (the_mode_changes, 11),
        (training_resumes, 11),
        (the_state_is_emptied, 9),
        (a_call_raises, 8),
        (a_group_is_added, 4),
        (the_caller_runs_backward, 0),
        (a_scale_overflows, 11),
        (a_weight_is_assigned, 7),
    ],
)
def test_what_changes_between_steps_is_as_in_eager(
    loop: Callable[[Wrap], Found], replays: int
) -> None:
    with EmulatedDevice():
        (expected, model), (found, trained), step = in_eager_and_captured(loop)
        # Capturable and fused optimizers round otherwise than their defaults.
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other, one, rtol=2e-4, atol=1e-5)
        for weight, other in zip(model.parameters(), trained.parameters(), strict=True):
            torch.testing.assert_close(other, weight, rtol=2e-3, atol=2e-5)
    assert step.replayed == replays, step.explain()


def test_evaluation_between_steps_is_as_in_eager() -> None:
    with EmulatedDevice():
        model = nn.Sequential(
            nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 1)
        ).cuda()
        twin = copy.deepcopy(model)
        eager = _step(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
        step = graphdoctor.capture(_step(model, torch.optim.SGD(model.parameters(), lr=0.1)))
        for i in range(12):
            torch.testing.assert_close(step(_x(i)), eager(_x(i)).detach())
            if i % 3 == 2:
                model.eval()
                twin.eval()
                with torch.no_grad():
                    torch.testing.assert_close(model(_x(50)), twin(_x(50)))
                model.train()
                twin.train()
        assert step.replayed == 9


def _before_the_study_ends(patch: pytest.MonkeyPatch) -> None:
    study = stages.study

    def studied(*args: Any) -> Any:
        study(*args)
        raise KeyboardInterrupt

    patch.setattr(stages, "study", studied)


def _before_the_proof_ends(patch: pytest.MonkeyPatch) -> None:
    def proved(*args: Any, **kwargs: Any) -> Any:
        prove_whole_step(*args, **kwargs)
        raise KeyboardInterrupt

    patch.setattr("graphdoctor.captured.step.prove_whole_step", proved)


@pytest.mark.parametrize("interruption", [_before_the_study_ends, _before_the_proof_ends])
def test_after_ctrl_c_in_a_study_training_goes_on_as_in_eager(
    interruption: Callable[[pytest.MonkeyPatch], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmulatedDevice():
        model, _ = _model()
        twin = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        eager = _step(twin, torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9))
        step = graphdoctor.capture(_step(model, optimizer))
        for i in range(3):
            step(_x(i))
            eager(_x(i))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interruption(patch)
            step(_x(3))
        assert type(optimizer.param_groups[0]["lr"]) is float
        for i in range(3, 11):
            torch.testing.assert_close(step(_x(i)), eager(_x(i)).detach())
        assert step.replayed == 8
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one, other)


def test_a_checkpoint_of_captured_training_resumes_in_a_program_without_captures() -> None:
    with EmulatedDevice():
        model, optimizer = _model()
        step = graphdoctor.capture(_step(model, optimizer))
        for i in range(8):
            step(_x(i))
        assert step.replayed == 5
        saved = io.BytesIO()
        torch.save({"model": model, "optimizer": optimizer.state_dict()}, saved)
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        resumed = loaded["model"]
        other = torch.optim.Adam(resumed.parameters(), lr=1e-2)
        other.load_state_dict(loaded["optimizer"])
        eager = _step(resumed, other)
        for i in range(8, 12):
            torch.testing.assert_close(step(_x(i)), eager(_x(i)).detach())
        for one, weight in zip(model.parameters(), resumed.parameters(), strict=True):
            torch.testing.assert_close(weight, one)
