"""Whole steps captured, replayed and compared with eager, on the emulated and on a real device."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.static_inputs import InputMismatch
from graphdoctor.graphs.whole_step import CapturedStep, capture_whole_step
from graphdoctor.proof.verify import verify_whole_step
from graphdoctor.target.state.snapshot import named_tensors, named_values
from graphdoctor.target.target import Inputs, Target
from graphdoctor.values.errors import UserCodeError
from graphdoctor.values.report import WHOLE_STEP, Verification


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def exact(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether replays on the device in use must have equal bits; "cuda" works while a test runs."""
    torch.manual_seed(0)
    if request.param == "cuda":
        yield False
    else:
        with EmulatedDevice():
            yield True


def target_of(
    step: Callable[..., object], *shapes: tuple[int, ...], make: Callable[[], Inputs] | None = None
) -> Target:
    def fresh() -> Inputs:
        return Inputs(tuple(torch.randn(shape, device="cuda") for shape in shapes))

    return Target(
        name="step",
        file=__file__,
        entry="test",
        mode="training",
        step=step,
        fresh_inputs=make or fresh,
        roots={"step": step},
    )


def captured(target: Target) -> CapturedStep:
    result = capture_whole_step(target)
    assert isinstance(result, CapturedStep), result
    return result


def verified(target: Target, exact: bool, replays: int = 3) -> Verification:
    batches = [target.fresh_inputs() for _ in range(replays)]
    return verify_whole_step(target, captured(target), batches, exact=exact)


def line_of(text: str) -> int:
    """The only line of this file that ends in a marker."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# <- {text}")]
    return found


def sgd_step(model: nn.Module, **options: float) -> Callable[..., torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)

    def step(data: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(data), wanted)
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_a_training_step_with_momentum_replays_like_eager(exact: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
    target = target_of(sgd_step(model, momentum=0.9), (5, 8), (5, 4))

    result = verified(target, exact)

    assert result.status == "verified", result
    assert result.replays == 3
    # Four parameters, each with gradient and momentum, the loss, and two inputs.
    assert result.tensors == 4 * 3 + 1 + 2
    assert result.differences == ()


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
    assert (result.location.file, result.location.line) == (__file__, line_of("adam"))


class ScaledLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return data.square().mean() * (self.steps / 10)  # <- scale


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
    assert (difference.location.file, difference.location.line) == (__file__, line_of("scale"))


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
    assert (result.location.file, result.location.line) == (__file__, line_of("item"))
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
        assert result.location is not None and result.location.line == line_of("hidden")


def test_a_refusal_leaves_the_state_as_it_was(exact: bool) -> None:
    model = ScaledLoss()

    def step(data: torch.Tensor) -> float:
        return model(data).item()

    assert isinstance(capture_whole_step(target_of(step, (4, 8))), Refusal)
    assert model.steps == 0


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


def test_another_path_that_only_rounds_differently_is_verified_and_told(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            return (data / 3.0).sum(0)
        return data.sum(0) / 3.0

    result = verified(target_of(step, (1000, 8)), exact)

    assert result.status == "verified", result
    if exact:
        assert "another path while it is captured" in result.reason


def test_another_path_that_computes_something_else_is_wrong(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        return data * 2.0 if torch.cuda.is_current_stream_capturing() else data * 3.0

    result = verified(target_of(step, (4, 8)), exact)

    assert result.status == "wrong"
    assert "something else while it is captured" in result.differences[0].detail


def test_another_path_that_leads_the_state_elsewhere_is_not_verified(exact: bool) -> None:
    total = torch.ones(8, device="cuda")

    def step(data: torch.Tensor) -> torch.Tensor:
        total.mul_(1.01 if torch.cuda.is_current_stream_capturing() else 1.0)
        return data * 2.0

    result = verified(target_of(step, (4, 8)), exact)

    assert result.status == "not-verified"
    assert "more than rounding" in result.reason


def dropped(data: torch.Tensor) -> torch.Tensor:
    """Dropout, in one of two ways."""
    if torch.cuda.is_current_stream_capturing():
        return data * torch.bernoulli(torch.full_like(data, 0.5)) / 0.5
    return nn.functional.dropout(data, 0.5)


def test_another_path_that_draws_other_random_numbers_is_not_verified(exact: bool) -> None:
    result = verified(target_of(dropped, (64, 64)), exact)

    assert result.status == "not-verified"
    assert "which draws other random numbers" in result.reason
    assert not result.differences


def test_the_same_draws_in_another_order_are_other_random_numbers(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            noise = torch.rand_like(data)
            return data * torch.bernoulli(torch.full_like(data, 0.5)) + noise
        return data * torch.bernoulli(torch.full_like(data, 0.5)) + torch.rand_like(data)

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "not-verified"
    assert "which draws other random numbers" in result.reason


def test_another_path_that_draws_the_same_random_numbers_is_compared(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        factor = 2.0 if torch.cuda.is_current_stream_capturing() else 3.0
        return factor * nn.functional.dropout(data, 0.5)

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "wrong"
    assert "something else while it is captured" in result.differences[0].detail


def test_what_no_random_number_reaches_is_compared_all_the_same(exact: bool) -> None:
    def step(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return dropped(data), data * (2.0 if torch.cuda.is_current_stream_capturing() else 3.0)

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "wrong"
    assert {each.tensor for each in result.differences} == {"output[1]"}


@torch.library.custom_op("graphdoctor_tests::noise_beside", mutates_args=())
def noise_beside(data: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(data)


def test_what_an_operator_without_a_tag_draws_shows_in_the_generator(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            noise_beside(data)
        return nn.functional.dropout(data, 0.5)

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "not-verified"
    assert "which draws other random numbers" in result.reason


def test_a_step_that_fails_is_the_user_s_error(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        return data @ data

    with pytest.raises(UserCodeError, match="the step failed"):
        capture_whole_step(target_of(step, (4, 8)))


def test_a_batch_of_another_shape_cannot_be_verified(exact: bool) -> None:
    target = target_of(lambda data: data * 2, (4, 8))
    graph = captured(target)
    ragged = [Inputs((torch.randn(4, size, device="cuda"),)) for size in (8, 7)]

    result = verify_whole_step(target, graph, ragged, exact=exact)

    assert result.status == "not-verified"
    assert "shape of inputs[0] changed from (4, 8) to (4, 7)" in result.reason


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


def test_a_tensor_that_is_returned_twice_is_no_difference(exact: bool) -> None:
    def step(x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x * 2
        return {"logits": y, "last": y}

    assert verified(target_of(step, (4,)), exact).status == "verified"
