"""A replayed graph does again, on the same memory, what was captured, and nothing else."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from tests.support.emulated import Seen, captured, device

__all__ = ["device"]
pytestmark = pytest.mark.usefixtures("device")


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*(shape or (3,)), device="cuda")


def test_results_go_to_the_tensors_of_the_capture() -> None:
    x = ones()
    graph, y = captured(lambda: x * 2)
    address = y.data_ptr()
    graph.replay()
    kept = y
    x.fill_(10)
    graph.replay()
    assert kept.tolist() == [20, 20, 20] and y.data_ptr() == address


def test_state_moves_with_replays_and_not_with_the_capture() -> None:
    x = torch.zeros(3, device="cuda")
    graph, _ = captured(lambda: x.add_(2))
    assert x.tolist() == [0, 0, 0]
    graph.replay()
    graph.replay()
    assert x.tolist() == [4, 4, 4]


def test_numbers_and_branches_are_frozen() -> None:
    x, state = ones(), {"calls": 0, "double": True}

    def body() -> torch.Tensor:
        state["calls"] += 1
        y = x * state["calls"]
        return y * 2 if state["double"] else y

    graph, y = captured(body)
    state["double"] = False
    graph.replay()
    graph.replay()
    assert y.tolist() == [2, 2, 2] and state["calls"] == 1


def test_addresses_are_frozen() -> None:
    x, holder = ones(), {"bias": ones()}
    graph, y = captured(lambda: x + holder["bias"])
    holder["bias"] = ones() * 100
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_a_scalar_of_the_host_is_frozen() -> None:
    x, scale = ones(), torch.tensor(2.0)
    graph, y = captured(lambda: x * scale)
    scale.fill_(9)
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_work_of_the_host_is_done_once() -> None:
    x, host = ones(), torch.ones(3)
    graph, y = captured(lambda: x + (host * 2).pin_memory().to("cuda", non_blocking=True))
    host.fill_(50)
    graph.replay()
    assert y.tolist() == [3, 3, 3]


@pytest.mark.parametrize("shape", [(3,), ()])
def test_an_asynchronous_copy_reads_host_memory_anew(shape: tuple[int, ...]) -> None:
    x, host = ones(), torch.ones(shape).pin_memory()
    graph, y = captured(lambda: x + host.to("cuda", non_blocking=True))
    host.fill_(7)
    graph.replay()
    assert y.tolist() == [8, 8, 8]


def test_random_numbers_are_fresh_and_repeatable() -> None:
    x, noise = ones(1000), torch.empty(1000, device="cuda")

    def body() -> tuple[torch.Tensor, ...]:
        return (
            F.dropout(x, 0.5), F.rrelu(-x, training=True), torch.rand(1000, device="cuda"),
            torch.bernoulli(x / 2), noise.normal_().clone(), noise.exponential_().clone(),
            torch.randint(0, 1000, (1000,), device="cuda"), torch.poisson(x), torch.randn_like(x),
        )  # fmt: skip

    graph, outputs = captured(body)
    torch.manual_seed(5)
    graph.replay()
    first = [output.clone() for output in outputs]
    graph.replay()
    assert not any(map(torch.equal, first, outputs))
    torch.manual_seed(5)
    graph.replay()
    assert all(map(torch.equal, first, outputs))
    torch.manual_seed(5)
    assert torch.equal(first[0], body()[0])


def test_views_lead_to_the_same_memory() -> None:
    x = ones(3, 4)

    def body() -> tuple[torch.Tensor, ...]:
        transposed = x.t()[1:, :2] + 1
        spread = x[0].expand(3, 4)
        changed = x.clone()
        changed[1:, ::2].mul_(3)
        changed.as_strided((2,), (5,)).zero_()
        return transposed, spread + changed, changed.view(12)[3:], x[1]

    graph, outputs = captured(body)
    for _ in range(3):
        x.copy_(torch.randn(3, 4).cuda())
        graph.replay()
        assert all(map(torch.equal, outputs, body()))


def test_a_training_step_replays_as_eager_trains() -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 4))
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(4, 8, device="cuda")

    def step(net: nn.Module, stepper: torch.optim.Optimizer, data: torch.Tensor) -> torch.Tensor:
        stepper.zero_grad(set_to_none=False)
        loss = net(data).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        stepper.step()
        return loss

    for _ in range(2):
        step(model, optimizer, x)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    before = copy.deepcopy(model.state_dict())
    graph, loss = captured(lambda: step(model, optimizer, x))
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    for _ in range(4):
        data = torch.randn(4, 8, device="cuda")
        generator = torch.get_rng_state()
        x.copy_(data)
        graph.replay()
        torch.set_rng_state(generator)
        assert torch.equal(loss, step(twin, twin_optimizer, data))
        assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, capturable=True),
    "adam one by one": lambda p: torch.optim.Adam(p, lr=0.1, capturable=True, foreach=False),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.1, capturable=True, fused=True),
    "adamw, rate on the device": lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(0.1, device="cuda"), capturable=True
    ),
    "rmsprop": lambda p: torch.optim.RMSprop(p, capturable=True),
    "nadam": lambda p: torch.optim.NAdam(p, capturable=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_that_may_be_captured_replay_right(name: str) -> None:
    """PyTorch's test_graph_optims asserts the same on a GPU."""
    ours, theirs = (torch.ones(4, device="cuda", requires_grad=True) for _ in range(2))
    optimizer, twin = OPTIMIZERS[name]([ours]), OPTIMIZERS[name]([theirs])
    ours.grad, theirs.grad = ones(4), ones(4)
    for each in (optimizer, twin):
        each.step()
    graph, _ = captured(optimizer.step)
    for value in (2, 3, 5):
        ours.grad.fill_(value)
        theirs.grad.fill_(value)
        graph.replay()
        twin.step()
        assert torch.equal(ours, theirs)


def test_a_schedule_reaches_a_rate_on_the_device_only() -> None:
    def left(rate: float | torch.Tensor) -> float:
        weight = torch.zeros(1, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=rate, fused=isinstance(rate, torch.Tensor))
        weight.grad = ones(1)
        graph, _ = captured(optimizer.step)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        scheduler.step()
        graph.replay()
        return round(weight.item(), 6)

    assert left(0.1) == -0.1  # the rate of the capture
    assert left(torch.tensor(0.1, device="cuda")) == -0.05


def test_gradients_are_written_where_the_capture_wrote_them() -> None:
    weight, x = ones().requires_grad_(), ones()

    def body() -> torch.Tensor:
        weight.grad = None
        (weight * x).sum().backward()
        assert weight.grad is not None
        return weight.grad

    body()
    weight.grad = None
    graph, gradient = captured(body)
    x.fill_(7)
    graph.replay()
    assert gradient.tolist() == [7, 7, 7] and weight.grad is gradient


def test_what_the_step_no_longer_holds_is_kept_for_replays() -> None:
    x = ones()
    graph, y = captured(lambda: (x + 1).mul(ones() * 3))
    gc.collect()
    trash = [torch.full((3,), 99.0, device="cuda") for _ in range(50)]
    graph.replay()
    assert y.tolist() == [6, 6, 6] and trash[0].tolist() == [99, 99, 99]


def test_outputs_outlive_their_graph() -> None:
    x = ones()
    graph, y = captured(lambda: x + 1)
    graph.replay()
    del graph
    assert y.tolist() == [2, 2, 2]


def test_a_replay_in_a_step_is_told_to_its_observers(device: EmulatedDevice) -> None:
    x, seen = ones(), Seen()
    graph, y = captured(lambda: x + 1)
    with device.observed_by(seen):
        graph.replay()
        _ = y * 2
    assert seen.events == [("graph-replay", "torch.cuda.CUDAGraph.replay()")]
    assert seen.calls == ["mul"]
    with pytest.raises(RuntimeError, match="previous error during capture"):
        captured(graph.replay)


def test_a_graph_can_be_captured_again_after_a_reset() -> None:
    x: torch.Tensor = ones()
    graph: Any = torch.cuda.CUDAGraph()
    for increment in (1, 5):
        with torch.cuda.graph(graph):
            y = x + increment
        graph.replay()
        assert y.tolist() == [1.0 + increment] * 3
        graph.reset()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()


@pytest.mark.parametrize("with_gradients", [True, False])
def test_kernels_that_ask_for_gradients_answer_as_they_did(with_gradients: bool) -> None:
    """oneDNN has one LSTM for training and one for inference, which round differently."""
    torch.manual_seed(0)
    model, x = nn.LSTM(64, 64, num_layers=2).cuda(), torch.randn(4, 3, 64, device="cuda")
    with torch.set_grad_enabled(with_gradients):
        expected = model(x)[0].detach().clone()
        graph, (y, _) = captured(lambda: model(x))
    for called_with in (True, False):
        with torch.set_grad_enabled(called_with):
            graph.replay()
            assert torch.is_grad_enabled() == called_with
        assert torch.equal(y.detach(), expected)


def test_the_last_writer_of_a_tensor_is_known() -> None:
    x = ones()
    graph, y = captured(lambda: (x + 1).mul_(3))
    operator, location = graph.last_writer(y)
    assert operator == "aten.mul_.Tensor" and location.file == __file__
    assert graph.operators == 2
