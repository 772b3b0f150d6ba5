"""The verdict on replays that are noisy, that fail, or that nothing can be compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.compare import Gap
from graphdoctor.graphs.footprint import Footprint, footprint
from graphdoctor.graphs.whole_step import CapturedStep, capture_whole_step
from graphdoctor.proof import twins
from graphdoctor.proof.verify import Noise, verify_whole_step
from graphdoctor.target.state.clone import clone_inputs
from graphdoctor.target.state.snapshot import snapshot
from graphdoctor.target.target import Inputs, Target
from graphdoctor.values.captures import Verification
from graphdoctor.values.errors import UserCodeError


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    torch.manual_seed(0)
    with EmulatedDevice():
        yield


def sequence(*values: float) -> Callable[[], float]:
    """Values one after the other, then from the first again; no snapshot can turn it back."""

    def endless() -> Iterator[float]:
        while True:
            yield from values

    numbers = endless()
    return lambda: next(numbers)


def data() -> Inputs:
    return Inputs((torch.full((4,), 2.0, device="cuda"),))


def target_of(step: Callable[..., object]) -> Target:
    return Target("step", __file__, "test", "inference", step, data, {"step": step})


class Graph:
    """Stands in for a CUDA graph: a replay runs a function on the static tensors."""

    device: Any = None

    def __init__(self, replay: Callable[[], object]) -> None:
        self.replay = replay


def verdict(
    eager_factor: Callable[[], float],
    replay_factor: Callable[[], float],
    *,
    exact: bool,
    replays: int = 3,
) -> Verification:
    """Eager multiplies its input by a factor, a replay by another one."""
    target = target_of(lambda data: data * eager_factor())
    static = clone_inputs(data())
    output = torch.zeros(4, device="cuda")

    def replay() -> None:
        output.copy_(static.args[0] * replay_factor())

    seen = footprint(target.roots, static, output)
    captured = CapturedStep(Graph(replay), static, output, seen, snapshot(target.roots))
    batches = [data() for _ in range(replays)]
    return verify_whole_step(target, captured, batches, exact=exact)


def test_equal_results_are_verified_either_way() -> None:
    for exact, method in ((True, "bitwise"), (False, "within eager's own deviation")):
        result = verdict(sequence(3.0), sequence(3.0), exact=exact)
        assert (result.status, result.method, result.replays) == ("verified", method, 3)
        assert result.tensors == 2  # the output and the input


def test_a_unit_in_the_last_place_is_wrong_only_where_bits_must_be_equal() -> None:
    near = float(torch.nextafter(torch.tensor(3.0), torch.tensor(4.0)))

    assert verdict(sequence(3.0), sequence(near), exact=True).status == "wrong"
    assert verdict(sequence(3.0), sequence(near), exact=False).status == "verified"


def test_a_replay_within_eager_s_own_noise_is_verified() -> None:
    # Three replays are compared with three of the eager values, and those with the next three.
    noisy = sequence(3.0, 3.0, 3.0, 3.001, 3.001, 3.001)

    result = verdict(noisy, sequence(3.002, 3.002, 3.002, 3.001), exact=False)

    assert result.status == "verified", result


def test_a_slow_clock_is_no_noise() -> None:
    clock = sequence(3.0, 3.0, 3.0, 3.001, 3.001, 3.001)

    result = verdict(clock, sequence(3.002), exact=False)

    assert result.status == "wrong"
    assert "a replay repeats its captured value" in result.differences[0].detail


def test_a_replay_beyond_eager_s_own_noise_is_wrong() -> None:
    noisy = sequence(3.0, 3.0, 3.0, 3.001, 3.001, 3.001)

    result = verdict(noisy, sequence(3.02, 3.02, 3.02, 3.021, 3.021, 3.021), exact=False)

    assert result.status == "wrong", result
    assert result.differences[0].max_abs == pytest.approx(0.042, rel=1e-3)  # the second replays


@pytest.mark.parametrize("exact", [True, False])
def test_a_replay_that_repeats_what_eager_does_not_freezes_it(exact: bool) -> None:
    result = verdict(sequence(1.0, 2.0, 3.0, 4.0, 5.0), sequence(1.0), exact=exact)

    assert result.status == "wrong"
    assert "eager itself differs" in result.differences[0].detail


@pytest.mark.parametrize("exact", [True, False])
def test_nothing_is_said_where_neither_eager_nor_replays_repeat_themselves(exact: bool) -> None:
    result = verdict(sequence(1.0, 2.0, 3.0, 4.0, 5.0), sequence(6.0, 7.0, 8.0, 9.0), exact=exact)

    assert result.status == "not-verified"
    assert "neither eager nor a replay repeats itself" in result.reason
    assert result.differences == ()


def chaotic(
    eager_error: Callable[[], float], replay_error: Callable[[], float], growth: float = 3.9
) -> Verification:
    """Each step multiplies what lies in the state by `growth`, and so what was rounded before."""
    state = torch.tensor([0.3, 0.4, 0.5], device="cuda")

    def step(data: torch.Tensor, error: Callable[[], float] = eager_error, by: float = 3.9) -> None:
        state.copy_(by * state * (1 - state) + error())

    roots = {"state": state}
    target = Target("step", __file__, "test", "inference", step, data, roots)
    static = clone_inputs(data())

    def replay() -> None:
        step(static.args[0], replay_error, growth)

    seen = footprint(roots, static, None)
    captured = CapturedStep(Graph(replay), static, None, seen, snapshot(roots))
    return verify_whole_step(target, captured, [data() for _ in range(25)], exact=False)


def test_where_each_step_multiplies_noise_runs_are_compared_in_step() -> None:
    eager, replayed = sequence(0.0, 1e-4, -1e-4, 5e-5), sequence(-1e-4, 1e-4, 2e-5, 0.0)

    assert chaotic(eager, replayed).status == "verified"


def test_where_eager_repeats_itself_replays_go_on_from_their_own_state() -> None:
    assert chaotic(sequence(0.0), sequence(3e-8)).status == "wrong"  # in step it would be rounding


def test_another_function_is_wrong_in_step_too() -> None:
    eager, replayed = sequence(0.0, 1e-4, -1e-4, 5e-5), sequence(-1e-4, 1e-4, 2e-5, 0.0)

    result = chaotic(eager, replayed, growth=3.8)

    assert result.status == "wrong"
    assert result.differences[0].tensor == "state"
    assert [each.replay for each in result.differences][:2] == [1, 2]


def trained(
    eager_noise: Callable[[], float], replay_noise: Callable[[], float], *, size: float = 0.5
) -> Verification:
    """A step with two gradients: one of the given size, and one that is only noise; Adam's first step."""
    weight, bias = (torch.zeros(3, device="cuda", requires_grad=True) for _ in range(2))
    weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)

    def run(noise: float) -> None:
        with torch.no_grad():
            weight.grad.fill_(size)  # type: ignore[union-attr]
            bias.grad.fill_(noise)  # type: ignore[union-attr]
            bias.copy_(-1e-3 * bias.grad.sign())  # type: ignore[union-attr]

    roots = {"weight": weight, "bias": bias}
    target = Target(
        "step", __file__, "test", "training", lambda data: run(eager_noise()), data, roots
    )
    static = clone_inputs(data())
    captured = CapturedStep(
        Graph(lambda: run(replay_noise())),
        static,
        None,
        footprint(roots, static, None),
        snapshot(roots),
    )
    return verify_whole_step(target, captured, [data() for _ in range(3)], exact=False)


@pytest.mark.parametrize("replayed", [(2e-6, -2e-6, 4e-6, -3e-6), (2e-6,)])
def test_a_gradient_that_is_nothing_but_rounding_is_not_held_against_replays(
    replayed: tuple[float, ...],
) -> None:
    result = trained(sequence(1e-6, -3e-6, 2e-6, -1e-6, 5e-6), sequence(*replayed))

    assert result.status == "verified", result


def test_a_gradient_that_is_small_beside_no_other_is_compared_by_its_own_size() -> None:
    noise = sequence(1e-6, -3e-6, 2e-6, -1e-6, 5e-6)

    result = trained(noise, sequence(2e-6), size=1e-6)

    assert result.status == "wrong"
    assert "a replay repeats its captured value" in result.differences[0].detail


def test_a_gradient_further_away_than_eager_from_itself_is_wrong() -> None:
    result = trained(sequence(1e-6, -3e-6, 2e-6, -1e-6, 5e-6), sequence(1e-4))

    assert result.status == "wrong"
    assert result.differences[0].tensor == "bias.grad"


def test_memory_that_no_snapshot_reaches_is_not_taken_for_a_wrong_replay() -> None:
    def hidden() -> Iterator[torch.Tensor]:
        state = torch.zeros(4, device="cuda")
        while True:
            yield state.add_(1.0)

    states = hidden()
    target = target_of(lambda data: data + next(states))
    captured = capture_whole_step(target)
    assert isinstance(captured, CapturedStep)

    result = verify_whole_step(target, captured, [data() for _ in range(3)], exact=True)

    assert result.status == "not-verified", result


@pytest.mark.parametrize(("exact", "status"), [(True, "not-verified"), (False, "wrong")])
def test_a_replay_that_fails_is_reported_with_its_number(exact: bool, status: str) -> None:
    factors = sequence(3.0, 0.0)

    def factor() -> float:
        if (value := factors()) == 0.0:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        return value

    result = verdict(sequence(3.0), factor, exact=exact)

    assert result.status == status
    assert result.reason == (
        "replay 2 failed: CUDA error: an illegal memory access was encountered"
    )


def test_differences_name_the_first_tensor_of_each_replay_in_order() -> None:
    result = verdict(sequence(3.0), sequence(3.0, 4.0, 5.0), exact=True)

    assert [(d.tensor, d.replay, d.max_abs) for d in result.differences] == [
        ("output", 2, 2.0),
        ("output", 3, 4.0),
    ]
    assert result.reason == "output differs from eager's in replay 2 by up to 2"


def test_results_that_do_not_fit_into_memory_are_not_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keep(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(twins, "keep", keep)

    result = verdict(sequence(3.0), sequence(3.0), exact=False)

    assert result.status == "not-verified"
    assert "do not fit into memory" in result.reason


def test_a_step_without_tensors_cannot_be_verified() -> None:
    target = target_of(lambda: None)
    captured = CapturedStep(
        Graph(lambda: None), Inputs(), None, footprint({}, Inputs(), None), snapshot({})
    )

    result = verify_whole_step(target, captured, [Inputs()], exact=True)

    assert result.status == "not-verified"
    assert "no tensor" in result.reason


def test_a_step_that_fails_while_it_is_verified_is_put_back() -> None:
    counter = torch.zeros(1, device="cuda")
    limit = {"calls": 0}

    def step(data: torch.Tensor) -> torch.Tensor:
        limit["calls"] += 1
        if limit["calls"] > 5:  # three warm up; the twin starts from there and makes three more
            raise ValueError("enough")
        return counter.add_(data.sum())

    target = target_of(step)
    captured = capture_whole_step(target)
    assert isinstance(captured, CapturedStep)
    limit["calls"] = 1  # what the target's state is before the verification

    with pytest.raises(UserCodeError, match="ValueError: enough"):
        verify_whole_step(target, captured, [data() for _ in range(3)], exact=True)

    assert limit["calls"] == 1
    assert counter.item() == 0.0


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, ""), (1, "(count 0)"), (3, "(count 0, count 1, count 2)"),
     (4, "(count 0, count 1, count 2, ...)")],
)  # fmt: skip
def test_three_numbers_that_stop_are_named(count: int, told: str) -> None:
    graph = with_graph(Graph(lambda: None))
    trial = twins.TwinTrial(target_of(lambda: None), graph, [Inputs()], True)
    names = [f"count {number}" for number in range(count)]
    trial.hosts.append(dict.fromkeys(names, 1))
    seen = Footprint({}, {}, dict.fromkeys(names, 2))
    reason = twins.verified(trial, [seen]).reason
    assert reason.startswith("all 0 tensors equal eager's bit for bit")
    assert ("host state stops advancing" in reason) == (count > 0)
    assert told in reason
    assert twins.verified(trial, [seen], note="as told").reason.startswith("as told")


class Assumed:
    """Stands in for an emulated device that is told to answer as if it were captured."""

    def __init__(self) -> None:
        self.is_told = False

    @contextmanager
    def assuming_capture(self) -> Iterator[None]:
        self.is_told = True
        yield
        self.is_told = False


def with_graph(graph: object) -> CapturedStep:
    nothing = footprint({}, Inputs(), None)
    return CapturedStep(graph, Inputs(), None, nothing, snapshot({}))


def test_an_emulated_device_answers_itself_that_it_is_captured() -> None:
    graph = Graph(lambda: None)
    graph.device = Assumed()
    with twins.assuming_capture(with_graph(graph)):
        assert graph.device.is_told
        assert not torch.cuda.is_current_stream_capturing()
    assert not graph.device.is_told


@pytest.mark.parametrize("device", [None, object()])
def test_of_a_real_device_torch_is_made_to_answer_that_it_is_captured(device: object) -> None:
    graph = Graph(lambda: None)
    graph.device = device
    modules = torch.cuda, torch.cuda.graphs
    before = [each.is_current_stream_capturing for each in modules]
    with twins.assuming_capture(with_graph(graph)):
        assert all(each.is_current_stream_capturing() for each in modules)
    assert [each.is_current_stream_capturing for each in modules] == before


# What eager's own drifts explain of a replay's differences, and what they do not.

EPS = 2.0**-23


def gap(path: str, relative: float, *, scale: float = 1.0) -> Gap:
    return Gap(path, max_abs=relative * scale, max_rel=relative, scale=scale, eps=EPS)


def test_without_drifts_nothing_is_noise() -> None:
    assert not Noise(()).explains(gap("model.weight.grad", 1e-7))


def test_a_tensor_that_stood_still_may_move_as_others_of_its_kind() -> None:
    noise = Noise([gap("model.0.weight.grad", 1e-6, scale=10.0)])
    assert noise.explains(gap("model.1.weight.grad", 3e-6, scale=0.001))
    assert not noise.explains(gap("model.1.weight.grad", 5e-6, scale=0.001))


def test_another_kind_of_tensor_is_not_explained() -> None:
    noise = Noise([gap("model.0.weight.grad", 1e-5)])
    assert not noise.explains(gap("model.0.weight", 1e-6))
    assert not noise.explains(gap("output.loss", 1e-6))


def test_each_sort_of_optimizer_state_is_a_kind() -> None:
    noise = Noise([gap("optimizer.state[model.0.weight].exp_avg_sq", 1e-5)])
    assert noise.explains(gap("optimizer.state[model.1.weight].exp_avg_sq", 2e-5))
    assert not noise.explains(gap("optimizer.state[model.1.weight].exp_avg", 2e-5))


def test_tensors_that_drift_far_explain_no_more_than_half_the_digits_of_others() -> None:
    noise = Noise([gap("model.0.weight", 0.009)])
    assert noise.explains(gap("model.1.weight", 3e-4))
    assert not noise.explains(gap("model.1.weight", 5e-4))


def test_a_wild_tensor_sets_no_measure_for_others() -> None:
    noise = Noise([gap("model.0.weight", 0.5)])
    assert not noise.explains(gap("model.1.weight", 1e-6))


def test_a_difference_in_kind_is_never_noise() -> None:
    noise = Noise([gap("output", 1e-3)])
    assert not noise.explains(Gap("output", detail="shape (2,) in eager, (3,) in the replay"))
