"""Whole steps captured on the emulated and on a real device: what is refused, loaded, left alone and given back."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.earlier_graphs import mark_held_accumulations
from graphdoctor.graphs import whole_step
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.static_inputs import InputMismatch
from graphdoctor.graphs.whole_step import capture_whole_step
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.record.session import WARM_UPS, prepare
from graphdoctor.target.build import Origin, build
from graphdoctor.target.description import Description
from graphdoctor.target.state.snapshot import named_tensors, named_values
from graphdoctor.target.target import Inputs
from graphdoctor.values.captures import WHOLE_STEP
from graphdoctor.values.errors import UserCodeError
from tests.support.whole_steps import ScaledLoss, captured, line_of, sgd_step, target_of, verified


def test_capture_and_verification_leave_no_trace(exact: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout()).to("cuda")
    target = target_of(sgd_step(model, momentum=0.9), (5, 8), (5, 4))
    tensors = {
        path: tensor.detach().clone() for path, tensor in named_tensors(target.roots).items()
    }
    values = named_values(target.roots)
    batches = [target.fresh_inputs() for _ in range(3)]
    states = random.getstate(), torch.get_rng_state()

    graph = captured(target)
    after_capture = random.getstate(), torch.get_rng_state()
    verify_whole_step(target, graph, batches, exact=exact)

    for python, generator in (after_capture, (random.getstate(), torch.get_rng_state())):
        assert python == states[0]
        assert torch.equal(generator, states[1])
    now = named_tensors(target.roots)
    assert now.keys() == tensors.keys()
    assert all(torch.equal(now[path], tensor) for path, tensor in tensors.items())
    assert named_values(target.roots) == values


def test_a_step_whose_program_holds_the_loss_of_an_earlier_one_is_refused(exact: bool) -> None:
    model = nn.Linear(8, 4).to("cuda")
    target = replace(target_of(sgd_step(model), (5, 8), (5, 4)), is_warm=True)
    held = model(torch.ones(5, 8, device="cuda")).sum()
    held.backward()
    mark_held_accumulations(target.roots)

    result = capture_whole_step(target)

    assert isinstance(result, Refusal) and "default stream" in result.reason
    del held
    result = capture_whole_step(target)
    assert not isinstance(result, Refusal), result


def test_an_adam_that_is_not_capturable_is_refused_with_torch_s_words(exact: bool) -> None:
    model = nn.Linear(8, 4).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())

    def step(data: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()  # <- adam

    result = capture_whole_step(target_of(step, (5, 8)))

    assert isinstance(result, Refusal)
    assert "capturable is False" in result.reason
    assert result.location is not None
    assert (result.location.file, result.location.line) == (__file__, line_of(__file__, "adam"))


def test_outputs_hold_on_to_no_autograd_graph(exact: bool) -> None:
    model = nn.Linear(8, 4).to("cuda")

    graph = captured(target_of(lambda data: {"out": model(data)}, (4, 8)))

    assert graph.outputs["out"].grad_fn is None


def test_a_value_read_on_the_host_is_refused_with_its_line(exact: bool) -> None:
    def size_of(tensor: torch.Tensor) -> float:
        return tensor.abs().sum().item()  # <- item

    target = target_of(lambda data: data / size_of(data), (4, 8))
    before = torch.cuda.current_stream()

    result = capture_whole_step(target)

    assert isinstance(result, Refusal)
    assert "operation not permitted when stream is capturing" in result.reason
    assert result.location is not None
    assert (result.location.file, result.location.line) == (__file__, line_of(__file__, "item"))
    assert result.location.function == "size_of"
    outcome = result.outcome(WHOLE_STEP)
    assert (outcome.scope, outcome.status) == ("whole step", "refused")
    # The device works on, and on the same stream.
    assert torch.cuda.current_stream() == before
    assert verified(target_of(lambda data: data * 2, (4, 8)), exact).status == "verified"


def test_a_refusal_that_the_step_hides_still_refuses(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        try:
            return data / data.sum().item()  # <- hidden
        except RuntimeError:
            return data * 2

    result = capture_whole_step(target_of(step, (4, 8)))

    assert isinstance(result, Refusal)
    if exact:
        assert "its error was caught in the step" in result.reason
    else:  # CUDA refuses what follows too, which leads back to the first refusal
        assert result.location is not None and result.location.line == line_of(__file__, "hidden")


def test_a_refusal_leaves_the_state_as_it_was(exact: bool) -> None:
    model = ScaledLoss()

    def step(data: torch.Tensor) -> float:
        return model(data).item()

    assert isinstance(capture_whole_step(target_of(step, (4, 8))), Refusal)
    assert model.steps == 0


def test_a_step_that_fails_is_the_user_s_error(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        return data @ data

    with pytest.raises(UserCodeError, match="the step failed"):
        capture_whole_step(target_of(step, (4, 8)))


def test_fresh_values_are_loaded_and_everything_else_is_refused(exact: bool) -> None:
    def make() -> Inputs:
        return Inputs((torch.randn(2, 3, device="cuda"),), {"scale": 2.0, "names": ["a"]})

    def step(data: torch.Tensor, *, scale: float, names: list[str]) -> torch.Tensor:
        return data * scale

    graph = captured(target_of(step, make=make))
    (address,) = (graph.static_inputs.args[0].data_ptr(),)
    batch = make()

    graph.load(batch)
    graph.replay()

    assert torch.equal(graph.outputs, batch.args[0] * 2.0)
    assert graph.static_inputs.args[0].data_ptr() == address
    with pytest.raises(InputMismatch, match=r"inputs\.scale changed from 2\.0 to 3\.0"):
        graph.load(Inputs(batch.args, {"scale": 3.0, "names": ["a"]}))
    with pytest.raises(InputMismatch, match=r"without inputs\.names\[1\]"):
        graph.load(Inputs(batch.args, {"scale": 2.0, "names": ["a", "b"]}))


def test_a_step_without_device_work_is_refused() -> None:
    with EmulatedDevice():
        result = capture_whole_step(target_of(lambda: time.sleep(0), make=Inputs))

    assert isinstance(result, Refusal)
    assert "nothing on the GPU" in result.reason


def test_a_released_step_cannot_be_replayed(exact: bool) -> None:
    graph = captured(target_of(lambda data: data * 2, (4, 8)))

    graph.release()

    with pytest.raises(RuntimeError):
        graph.replay()
    assert graph.outputs is None


@pytest.mark.usefixtures("exact")
def test_warm_ups_leave_a_warm_step_where_its_program_is() -> None:
    """A step of a program writes into a cache of which one place is left."""
    kept, filled = torch.zeros(4, 2, device="cuda"), torch.full((1,), 3, device="cuda")

    def step(x: torch.Tensor) -> torch.Tensor:
        kept.index_copy_(0, filled, x)
        filled.add_(1)
        return kept.sum(0)

    described = Description(step, inputs=Inputs((torch.ones(1, 2, device="cuda"),)))
    target = build(described, Origin("step", "", "a function"), mode=None, close=lambda: None)

    graph = capture_whole_step(replace(target, is_warm=True), warmup=1)

    assert not isinstance(graph, Refusal)
    assert filled.item() == 3
    graph.start.restore()
    assert filled.item() == 3


def test_a_step_that_ran_on_the_stream_of_the_capture_is_not_warmed_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The emulated device stands for a GPU. A step in place of the session's own has not run there."""
    warm_ups: list[int] = []
    monkeypatch.setattr(whole_step, "warm_up", lambda target, side, times: warm_ups.append(times))
    with EmulatedDevice() as device:
        session = prepare(target_of(torch.neg, (4,)), device, iterations=2)
        monkeypatch.setattr(EmulatedDevice, "kind", "cuda")
        for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
            for step in (None, torch.neg):
                with torch.cuda.stream(stream):
                    made = whole_step.capture_from_start(session, step)
                assert not isinstance(made, Refusal)
                made.release()
    assert warm_ups == [0, WARM_UPS, WARM_UPS, WARM_UPS]
