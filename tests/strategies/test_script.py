"""TorchScript as a strategy: scripted or traced, alone and under a graph, verified on the emulated device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from graphdoctor.strategies.compilers.scripted import Script, ScriptGraph
from graphdoctor.strategies.strategy import CannotBuild
from graphdoctor.target.state.snapshot import named_state
from tests.support.plain_session import session_of
from tests.support.trying import Tried, tried

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Gelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


class Unscriptable(nn.Module):
    """Keyword arguments by the dozen have no type in TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, **options: float) -> torch.Tensor:
        return self.layer(x) * options.get("scale", 2.0)


def gelu() -> object:
    return Gelu().cuda(), (torch.randn(2, 8, device="cuda"),)


def unscriptable() -> object:
    return Unscriptable().cuda().eval(), (torch.randn(2, 8, device="cuda"),)


def function() -> object:
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2 + x

    return SimpleNamespace(step=step, inputs=(torch.randn(2, 8, device="cuda"),))


def training() -> object:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(data: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    state = {"model": model, "optimizer": optimizer}
    return SimpleNamespace(step=step, inputs=(torch.randn(4, 8, device="cuda"),), state=state)


def state_of(attempt: Tried) -> tuple[dict[str, torch.Tensor], object]:
    tensors, values = named_state(attempt.session.target.roots)
    return {path: tensor.detach().clone() for path, tensor in tensors.items()}, values


@pytest.mark.parametrize("strategy", [Script(), ScriptGraph()], ids=["script", "script-graph"])
@pytest.mark.parametrize("subject", [gelu, function, training])
def test_a_scripted_step_is_verified_and_leaves_no_trace(
    strategy: Script | ScriptGraph, subject: object
) -> None:
    with tried(subject) as attempt:
        tensors, values = state_of(attempt)
        verdict = attempt.verdict(strategy)
        assert verdict.status == "verified", verdict.reason
        attempt.session.start.restore()
        now, now_values = state_of(attempt)
        assert now.keys() == tensors.keys() and now_values == values
        assert all(torch.equal(now[path], tensors[path]) for path in tensors)


def test_what_runs_is_the_script() -> None:
    with tried(gelu) as attempt:
        built = Script().build(attempt.session, attempt.known)
        (run,) = built._models.values()
        assert isinstance(run, torch.jit.ScriptModule)
        assert built.note == ""
        built.release()


def test_what_can_be_neither_scripted_nor_traced_is_one_sentence() -> None:
    """Tracing is stood in for on the emulated device: it would trace the emulation."""
    with tried(unscriptable) as attempt:
        with pytest.raises(CannotBuild, match=r"cannot be scripted .*real GPU to trace") as caught:
            Script().build(attempt.session, attempt.known)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is not None
        with pytest.raises(CannotBuild) as again:  # torch would remember the failure
            Script().build(attempt.session, attempt.known)
        assert str(again.value) == str(caught.value)


def test_what_cannot_be_scripted_is_traced_and_says_so() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, **options: float) -> torch.Tensor:
            return torch.tanh(x) * options.get("scale", 2.0)

    model = Model().eval()

    def step(data: torch.Tensor) -> torch.Tensor:
        return model(data) + 1

    session, known = session_of(step)
    built = Script().build(session, known)
    inputs = session.inputs(1)
    assert torch.equal(built.call(inputs), session.call(inputs))  # type: ignore[arg-type]
    assert built.note.startswith("model is traced, because it cannot be scripted (")
    built.release()


def test_the_code_scripts_the_model() -> None:
    with tried(training) as attempt:
        assert Script().code(attempt.known) == "model = torch.jit.script(model)\n"
        assert "torch.cuda.graph(" in ScriptGraph().code(attempt.known)
