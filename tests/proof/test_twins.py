"""Whole steps replayed and compared with their eager twins, on the emulated and on a real device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.target.target import Inputs
from tests.support import whole_steps
from tests.support.whole_steps import ScaledLoss, captured, line_of, sgd_step, target_of, verified


def test_a_training_step_with_momentum_replays_like_eager(exact: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
    target = target_of(sgd_step(model, momentum=0.9), (5, 8), (5, 4))

    result = verified(target, exact)

    assert result.status == "verified", result
    assert result.replays == 3
    # Four parameters, each with gradient and momentum, the loss, and two inputs.
    assert result.tensors == 4 * 3 + 1 + 2
    assert result.differences == ()


def test_verification_can_be_repeated_on_one_capture(exact: bool) -> None:
    model = nn.Linear(8, 4).to("cuda")
    target = target_of(sgd_step(model, momentum=0.9), (5, 8), (5, 4))
    graph = captured(target)
    batches = [target.fresh_inputs() for _ in range(3)]

    first, second = (verify_whole_step(target, graph, batches, exact=exact) for _ in range(2))

    assert first.status == second.status == "verified"


def test_a_capturable_adam_replays_like_eager(exact: bool) -> None:
    model = nn.Linear(8, 4).to("cuda")
    rate = torch.tensor(0.01, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=True)

    def step(data: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    result = verified(target_of(step, (5, 8)), exact)

    assert result.status == "verified", result


def test_a_frozen_host_factor_is_wrong_and_named(exact: bool) -> None:
    model = ScaledLoss()
    target = target_of(lambda data: {"loss": model(data)}, (5, 8))
    batches = [target.fresh_inputs() for _ in range(3)]

    result = verify_whole_step(target, captured(target), batches, exact=exact)

    assert result.status == "wrong"
    # Three steps warm up; the graph holds the fourth factor, which the first replay needs too.
    first = result.differences[0]
    assert (first.tensor, first.replay) == ("output.loss", 2)
    mean = batches[1].args[0].square().mean().item()
    assert first.max_abs == pytest.approx(0.1 * mean, rel=1e-4)
    assert first.max_rel == pytest.approx(0.2, rel=1e-4)
    assert [difference.replay for difference in result.differences] == [2, 3]
    assert result.reason.startswith("output.loss differs from eager's in replay 2 by up to 0.")


def test_the_line_that_wrote_a_wrong_tensor_is_named() -> None:
    with EmulatedDevice():
        model = ScaledLoss()
        result = verified(target_of(model, (5, 8)), exact=True)

    (difference, *_) = result.differences
    assert difference.operator == "aten.mul.Tensor"
    assert difference.location is not None
    assert (difference.location.file, difference.location.line) == (
        whole_steps.__file__,
        line_of(whole_steps.__file__, "scale"),
    )


def test_a_frozen_learning_rate_shows_in_the_parameters(exact: bool) -> None:
    model = nn.Linear(8, 4).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

    def step(data: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        scheduler.step()

    result = verified(target_of(step, (5, 8)), exact)

    assert result.status == "wrong"
    assert result.differences[0].tensor in ("model.weight", "model.bias")
    assert result.differences[0].replay == 2


def test_a_count_on_the_cpu_stands_still_at_replays(exact: bool) -> None:
    model = nn.Linear(8, 4).to("cuda")
    optimizer = torch.optim.Adagrad(model.parameters())  # counts its steps in CPU tensors

    def step(data: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    result = verified(target_of(step, (5, 8)), exact)

    assert result.status == "wrong"
    assert result.differences[0].tensor.endswith(".step")
    if exact:
        assert "no operator of the graph writes it" in result.differences[0].detail


def test_a_state_that_is_rebound_does_not_advance_at_replays(exact: bool) -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = torch.zeros(4, 8, device="cuda")

        def forward(self, data: torch.Tensor) -> None:
            self.hidden = torch.tanh(self.hidden + data)

    result = verified(target_of(Cell(), (4, 8)), exact)

    assert result.status == "wrong"
    assert result.differences[0].tensor.endswith(".hidden")
    assert result.differences[0].replay == 2


def test_a_state_updated_in_place_advances_at_replays(exact: bool) -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(8, device="cuda"))

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            return self.mean.mul_(0.9).add_(data.mean(0), alpha=0.1)

    assert verified(target_of(Average(), (4, 8)), exact).status == "verified"


def test_a_growing_history_is_wrong(exact: bool) -> None:
    class Recorder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[torch.Tensor] = []

        def forward(self, data: torch.Tensor) -> None:
            self.seen.append(data * 2)

    result = verified(target_of(Recorder(), (4, 8)), exact)

    assert result.status == "wrong"
    assert ".seen[" in result.differences[0].tensor


def test_inputs_that_the_step_writes_into_are_compared_too(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        data.add_(1.0)
        return data.sum()

    target = target_of(step, (4, 8))
    graph = captured(target)
    batches = [target.fresh_inputs() for _ in range(3)]
    before = [batch.args[0].clone() for batch in batches]

    result = verify_whole_step(target, graph, batches, exact=exact)

    assert result.status == "verified", result
    assert "inputs[0]" in graph.footprint.tensors
    for batch, values in zip(batches, before, strict=True):
        assert torch.equal(batch.args[0], values)


def test_an_input_s_gradient_is_compared(exact: bool) -> None:
    def make() -> Inputs:
        return Inputs((torch.randn(4, 8, device="cuda", requires_grad=True),))

    def step(data: torch.Tensor) -> None:
        data.pow(3).sum().backward()

    target = target_of(step, make=make)
    graph = captured(target)

    result = verify_whole_step(target, graph, [make() for _ in range(3)], exact=exact)

    assert result.status == "verified", result
    assert "inputs[0].grad" in graph.footprint.tensors


def test_dropout_draws_anew_and_like_eager(exact: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5)).to("cuda")
    target = target_of(model, (4, 8))
    graph = captured(target)

    assert verified(target, exact).status == "verified"
    masks = []
    for _ in range(2):
        graph.replay()
        masks.append((graph.outputs == 0).clone())
    assert not torch.equal(*masks)


def test_random_numbers_that_the_host_draws_do_not_shift_the_device_s(exact: bool) -> None:
    layer = nn.Dropout(0.5)

    def step(data: torch.Tensor) -> torch.Tensor:
        dropped = layer(data)
        torch.randn(3)  # on the CPU, for nothing
        return dropped

    assert verified(target_of(step, (4, 64)), exact).status == "verified"


def test_a_counter_that_reaches_no_tensor_is_told_but_not_wrong(exact: bool) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return data * 2

    result = verified(target_of(Counting(), (4, 8)), exact)

    assert result.status == "verified"
    assert "host state stops advancing" in result.reason
    assert ".steps" in result.reason


def test_a_returned_python_number_that_eager_changes_is_wrong(exact: bool) -> None:
    model = ScaledLoss()

    def step(data: torch.Tensor) -> tuple[torch.Tensor, int]:
        model.steps += 1
        return data * 2, model.steps

    result = verified(target_of(step, (4, 8)), exact)

    assert result.status == "wrong"
    assert (result.differences[0].tensor, result.differences[0].replay) == ("output[1]", 2)
    assert "5 in eager, 4 at every replay" in result.differences[0].detail


def test_a_clock_in_the_step_is_wrong_although_eager_never_repeats_itself(exact: bool) -> None:
    ticks = (tick for tick in range(1, 1000))  # a clock that no snapshot can turn back

    result = verified(target_of(lambda data: data * next(ticks), (4, 8)), exact)

    assert result.status == "wrong"
    assert "eager itself differs" in result.differences[0].detail


def test_a_batch_of_another_shape_cannot_be_verified(exact: bool) -> None:
    target = target_of(lambda data: data * 2, (4, 8))
    graph = captured(target)
    ragged = [Inputs((torch.randn(4, size, device="cuda"),)) for size in (8, 7)]

    result = verify_whole_step(target, graph, ragged, exact=exact)

    assert result.status == "not-verified"
    assert "shape of inputs[0] changed from (4, 8) to (4, 7)" in result.reason


def test_state_that_is_handed_to_the_step_stays_the_state(exact: bool) -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("store", torch.zeros(8, device="cuda"))

    model = Cache()

    def step(data: torch.Tensor, store: torch.Tensor) -> torch.Tensor:
        store.add_(data)
        return model.store * 2

    target = target_of(step, make=lambda: Inputs((torch.randn(8, device="cuda"), model.store)))
    assert verified(target, exact).status == "verified"


def test_expanded_and_aliased_inputs_keep_their_make(exact: bool) -> None:
    def make() -> Inputs:
        row = torch.randn(1, 8, device="cuda")
        whole = torch.randn(6, 8, device="cuda")
        return Inputs((row.expand(4, 8), whole[:4], whole[2:]))

    def step(row: torch.Tensor, top: torch.Tensor, bottom: torch.Tensor) -> torch.Tensor:
        top.add_(row)  # seen in `bottom` too
        return bottom.sum(0)

    target = target_of(step, make=make)
    result = verified(target, exact)

    assert result.status == "verified", result
    static = captured(target).static_inputs.args
    assert static[0].stride() == (0, 1)


def test_a_tensor_that_is_returned_twice_is_no_difference(exact: bool) -> None:
    def step(x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x * 2
        return {"logits": y, "last": y}

    assert verified(target_of(step, (4,)), exact).status == "verified"
