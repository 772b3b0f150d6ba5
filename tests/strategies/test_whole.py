"""The whole step as one graph: what it takes, what it refuses, and what it leaves behind."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from graphdoctor.graphs.static_inputs import InputMismatch
from graphdoctor.strategies import STRATEGIES
from graphdoctor.strategies.strategy import CannotBuild
from graphdoctor.strategies.whole import Whole
from graphdoctor.target import Inputs, named_tensors
from tests.support.trying import tried

WHOLE = Whole()


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def inference() -> object:
    return network().cuda(), (torch.randn(2, 8, device="cuda"),)


def training(*, reads: bool = False, lr: float = 0.1, decay: float = 1.0) -> object:
    model = network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay) if decay < 1 else None

    def step(data: torch.Tensor) -> object:
        optimizer.zero_grad(set_to_none=True)
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        return loss.item() if reads else loss.detach()

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return SimpleNamespace(step=step, inputs=(torch.randn(2, 8, device="cuda"),), state=state)


def reading() -> object:
    return training(reads=True)


def scheduled() -> object:
    return training(decay=0.9)


def test_it_is_in_the_list() -> None:
    assert "whole" in [strategy.name for strategy in STRATEGIES]


@pytest.mark.parametrize("subject", [inference, training])
def test_a_safe_step_is_one_verified_graph(subject: object) -> None:
    with tried(subject) as found:  # type: ignore[arg-type]
        assert WHOLE.reason_against(found.known) == ""
        assert WHOLE.regions(found.known) == (tuple(range(len(found.known.iteration.ops))),)
        result = found.verdict(WHOLE)
        assert result.status == "verified", result


def test_state_is_afterwards_what_it_was_and_the_outputs_follow_the_inputs() -> None:
    with tried(training) as found:
        tensors = named_tensors(found.session.target.roots)
        before = {path: tensor.clone() for path, tensor in tensors.items()}
        built = WHOLE.build(found.session, found.known)
        now = named_tensors(found.session.target.roots)
        assert now.keys() == before.keys()
        assert all(torch.equal(now[path], before[path]) for path in before)

        first = built.call(found.session.batches[0])
        assert isinstance(first, torch.Tensor)
        value = first.item()
        second = built.call(found.session.batches[1])
        assert second is first and first.item() != value
        built.release()
        with pytest.raises(RuntimeError):
            built.call(found.session.batches[0])


def test_a_shape_that_was_not_captured_is_named() -> None:
    with tried(inference) as found:
        built = WHOLE.build(found.session, found.known)
        with pytest.raises(InputMismatch, match=r"shape of inputs\[0\] changed from \(2, 8\)"):
            built.call(Inputs((torch.randn(3, 8, device="cuda"),)))


def test_a_refused_capture_says_why_and_leaves_the_state_alone() -> None:
    with tried(reading) as found:
        reason = WHOLE.reason_against(found.known)
        assert reason.startswith("GD101 host-read in line ")
        assert reason.endswith(" of test_whole.py makes the capture fail")
        before = found.session.target.roots["model"][0].weight.clone()  # type: ignore[index]
        with pytest.raises(CannotBuild, match=r"_local_scalar_dense.* in line \d+ of test_"):
            WHOLE.build(found.session, found.known)
        assert torch.equal(found.session.target.roots["model"][0].weight, before)  # type: ignore[index]


def test_a_schedule_inside_the_step_does_not_fit_because_it_would_be_wrong() -> None:
    with tried(scheduled) as found:
        reason = WHOLE.reason_against(found.known)
        assert reason.startswith("GD204 frozen-learning-rate in line ")
        assert reason.endswith("makes a replay compute something else")
        assert found.verdict(WHOLE).status == "wrong"


@pytest.mark.parametrize("subject", [inference, training])
def test_the_code_is_python_for_the_mode(subject: object) -> None:
    with tried(subject) as found:  # type: ignore[arg-type]
        code = WHOLE.code(found.known)
        compile(code, "pasted", "exec")
        assert "# A shorter last batch" in code and "drop_last" in code
        assert ("step(*static_inputs)" in code) == (found.known.mode == "training")


@pytest.mark.parametrize("subject", [inference, training])
def test_the_code_works_when_it_is_pasted(subject: object) -> None:
    with tried(subject) as found:  # type: ignore[arg-type]
        target = found.session.target
        data = found.session.batches[0].args[0]
        assert isinstance(data, torch.Tensor)
        names = {"torch": torch, "model": target.roots["model"], "step": target.step}
        names |= {"example": data.clone(), "examples": (data.clone(),)}
        exec(WHOLE.code(found.known), names)
        fast = names["fast" if found.known.mode == "inference" else "fast_step"]
        found.session.start.restore()
        expected = target.step(found.session.batches[1].args[0])
        assert isinstance(expected, torch.Tensor)
        found.session.start.restore()
        assert torch.equal(fast(found.session.batches[1].args[0]), expected)  # type: ignore[operator]


@pytest.mark.gpu
@pytest.mark.parametrize("subject", [inference, training])
def test_on_a_real_device_too(subject: object) -> None:
    with tried(subject, choice="cuda") as found:  # type: ignore[arg-type]
        assert found.verdict(WHOLE).status == "verified"


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, targets: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return (x - targets) * scale


def scaled_difference() -> object:
    x, targets = torch.randn(2, 8, device="cuda"), torch.randn(2, 8, device="cuda")
    return Scaled(), ((x,), {"targets": targets, "scale": 0.5})


def test_the_code_is_the_call_that_was_verified() -> None:
    with tried(scaled_difference) as found:
        code = WHOLE.code(found.known)
        assert "static_output = model(static_x, targets=static_targets, scale=0.5)" in code
        assert "def fast(x, targets):" in code
        first, second = found.session.batches[:2]
        names = {"torch": torch, "model": found.session.target.roots["model"]}
        names |= {"x": first.args[0].clone(), "targets": first.kwargs["targets"].clone()}  # type: ignore[attr-defined]
        exec(code, names)
        x, targets = second.args[0], second.kwargs["targets"]
        assert torch.equal(names["fast"](x, targets), (x - targets) * 0.5)  # type: ignore[operator]
