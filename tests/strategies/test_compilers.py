"""Strategies that compile leave model, state and Dynamo as they were, and say why they cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.compiler import (
    Compile,
    Compiler,
    CudaGraphs,
    MaxAutotune,
    ReduceOverhead,
    Skips,
    models_of,
)
from graphdoctor.strategies.strategy import CannotBuild, Known
from graphdoctor.target.state.snapshot import named_state
from graphdoctor.values.recording import Iteration
from tests.support.plain_session import session_of

COMPILERS = (Compile(), ReduceOverhead(), MaxAutotune(), CudaGraphs())


class Eagerly(Compiler):
    """Dynamo without a code generator: what Dynamo does is the same, and it needs no compiler."""

    name = "eagerly"
    title = "torch.compile"
    backend = "eager"


class Failing(Compiler):
    name = "failing"
    title = "torch.compile"

    def _compile(self, function: Any) -> Any:
        return torch.compile(function, backend=_failing_backend)


def _failing_backend(graph_module: Any, inputs: Any) -> Any:
    raise ValueError("no such kernel")


def make_training() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_function = nn.MSELoss()

    def step(data: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_function(model(data), data.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def state_of(session: Session) -> Any:
    tensors, values = named_state(session.target.roots)
    copies = {path: tensor.detach().clone() for path, tensor in tensors.items()}
    attributes = {
        path: sorted(vars(module)) for path, module in models_of(session.target.roots).items()
    }
    return copies, values, attributes


def assert_same_state(left: Any, right: Any) -> None:
    assert left[0].keys() == right[0].keys()
    assert all(torch.equal(left[0][path], right[0][path]) for path in left[0])
    assert left[1:] == right[1:]


def after_three(session: Session, call: Any) -> Any:
    session.start.restore()
    outputs = [call(session.inputs(index)) for index in range(3)]
    seen = state_of(session)
    session.start.restore()
    return outputs, seen


def test_a_compiled_step_trains_as_eager_does_and_leaves_no_trace() -> None:
    session, known = session_of(make_training())
    before = state_of(session)
    expected = after_three(session, session.call)
    built = Eagerly().build(session, known)
    assert_same_state(state_of(session), before)
    outputs, state = after_three(session, built.call)
    assert_same_state(state, expected[1])
    assert all(map(torch.equal, outputs, expected[0]))
    outputs = built.call(session.inputs(0))
    assert set(built.left_behind(session.inputs(0), outputs).tensors) > {"output"}
    session.start.restore()
    built.release()
    assert_same_state(state_of(session), before)


def test_models_are_compiled_during_a_call_only() -> None:
    model = nn.Linear(4, 4)
    seen: list[bool] = []

    def step(data: torch.Tensor) -> torch.Tensor:
        seen.append(model._compiled_call_impl is not None)
        return model(data)

    session, known = session_of(step)
    built = Eagerly().build(session, known)
    seen.clear()
    built.call(session.inputs(0))
    assert seen == [True]
    assert "_compiled_call_impl" not in vars(model)
    built.release()
    session.call(session.inputs(0))
    assert seen == [True, False]


def test_a_step_without_models_is_compiled_itself() -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        return torch.tanh(data) * 2

    session, known = session_of(step)
    built = Eagerly().build(session, known)
    inputs = session.inputs(0)
    assert torch.equal(built.call(inputs), step(*inputs.args))  # type: ignore[arg-type]
    assert Eagerly().code(known).startswith('step = torch.compile(step, backend="eager")')
    built.release()


def test_a_failing_compiler_is_one_sentence_and_leaves_no_trace() -> None:
    session, known = session_of(make_training())
    before = state_of(session)
    with pytest.raises(CannotBuild, match=r"torch.compile failed: .*no such kernel") as caught:
        Failing().build(session, known)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    assert_same_state(state_of(session), before)


@pytest.mark.parametrize("strategy", COMPILERS, ids=lambda strategy: strategy.name)
def test_the_code_is_what_was_tried(strategy: Compiler) -> None:
    _, known = session_of(make_training())
    code = strategy.code(known)
    compile(code, "code", "exec")
    assert code.startswith("model = torch.compile(model")
    assert (strategy.mode or strategy.backend or "") in code
    assert strategy.title.startswith("torch.compile")
    assert strategy.compiles and not strategy.is_ours


def test_what_is_compiled_already_is_not_compiled_again() -> None:
    model = nn.Linear(4, 4)
    roots: dict[str, object] = {"model": model}
    known = Known("inference", roots, (), (), Iteration(0, True, (), (), (), (), (), ()))
    assert Compile().reason_against(known) == ""
    model.compile(backend="eager")
    assert "compiled already" in Compile().reason_against(known)
    roots["model"] = torch.compile(nn.Linear(4, 4), backend="eager")
    assert "compiled already" in Compile().reason_against(known)
    roots["model"] = torch.jit.script(nn.Linear(4, 4))
    assert "TorchScript" in Compile().reason_against(known)


def test_graphs_that_torch_leaves_out_are_told() -> None:
    from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter

    skips = Skips()
    with skips.noted():
        log_cudagraph_skip_and_bump_counter(
            "skipping cudagraphs due to mutated inputs (1 instances)"
        )
    assert skips.count == 1
    assert skips.note.startswith("torch ran 1 graph without CUDA graphs")
    quiet = Skips()
    with quiet.noted():
        pass
    assert quiet.note == ""
