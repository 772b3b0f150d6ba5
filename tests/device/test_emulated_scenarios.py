"""What PyTorch's own tests of CUDA graphs assert on a GPU, asserted on the emulated device.

Each test names the upstream test (in test/test_cuda.py, where no other file is given).
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.emulated import captured, device

__all__ = ["device"]
pytestmark = pytest.mark.usefixtures("device")


def full(value: float, size: int = 3) -> torch.Tensor:
    return torch.full((size,), value, device="cuda")


def test_simple() -> None:
    """test_graph_capture_simple."""
    side, graph, a = torch.cuda.Stream(), torch.cuda.CUDAGraph(), full(1, 1000)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.capture_begin()
        b = a
        for _ in range(10):
            b = b + 1
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    graph.replay()
    assert b.sum().item() == 11000


def test_two_successive_graphs_share_a_pool() -> None:
    """test_graph_two_successive."""
    x: Any = full(1)
    first, y = captured(lambda: x + 1)
    second, z = captured(lambda: y * 2, pool=first.pool())
    for value in (1, 5):
        x.fill_(value)
        first.replay()
        second.replay()
        assert z.tolist() == [(value + 1) * 2] * 3


def test_three_successive_graphs_in_their_order() -> None:
    """test_graph_three_successive."""
    x, pool = full(1), torch.cuda.graph_pool_handle()
    first, a = captured(lambda: x + 1, pool=pool)
    second, b = captured(lambda: a * 2, pool=pool)
    third, c = captured(lambda: a * 3, pool=pool)
    for graph in (first, second, third):
        graph.replay()
    assert (b.tolist(), c.tolist()) == ([4] * 3, [6] * 3)


def test_replays_on_two_streams() -> None:
    """test_graph_concurrent_replay, with a pool for each graph."""
    x = full(1)
    (first, a), (second, b) = captured(lambda: x + 1), captured(lambda: x * 5)
    for graph in (first, second):
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.replay()
    torch.cuda.synchronize()
    assert (a + b).tolist() == [7, 7, 7]


@pytest.mark.parametrize("amp", [False, True])
def test_callables_train_as_eager_does(amp: bool) -> None:
    """test_graph_make_graphed_callables."""
    torch.manual_seed(0)
    front, back = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0)).cuda(), nn.Linear(8, 4).cuda()
    plain_front, plain_back = copy.deepcopy((front, back))
    loss_of = nn.MSELoss()
    x, hidden, target = (torch.randn(4, size, device="cuda") for size in (8, 8, 4))
    predicted = torch.randn(4, 4, device="cuda", requires_grad=True)
    with torch.autocast("cuda", enabled=amp, cache_enabled=False):
        graphed_front, graphed_back, graphed_loss = torch.cuda.make_graphed_callables(
            (front, back, loss_of), ((x,), (hidden.requires_grad_(),), (predicted, target))
        )

    def train(parts: tuple[Any, Any, Any], data: torch.Tensor, wanted: torch.Tensor) -> None:
        first, second, loss = parts
        with torch.autocast("cuda", enabled=amp):
            result = loss(second(first(data)), wanted)
        result.backward()

    ours = torch.optim.SGD([*front.parameters(), *back.parameters()], lr=0.1)
    theirs = torch.optim.SGD([*plain_front.parameters(), *plain_back.parameters()], lr=0.1)
    for _ in range(4):
        data, wanted = torch.randn(4, 8, device="cuda"), torch.randn(4, 4, device="cuda")
        for optimizer, parts in (
            (ours, (graphed_front, graphed_back, graphed_loss)),
            (theirs, (plain_front, plain_back, loss_of)),
        ):
            optimizer.zero_grad(set_to_none=True)
            train(parts, data, wanted)
            optimizer.step()
    for one, other in zip(front.parameters(), plain_front.parameters(), strict=True):
        assert torch.equal(one, other)
    front.eval()
    assert front(x).shape == (4, 8)


def test_a_callable_with_dropout_draws_as_eager_does() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4)).cuda()
    plain = copy.deepcopy(model)
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(4, 8, device="cuda"),))
    for _ in range(4):
        data, generator = torch.randn(4, 8, device="cuda"), torch.get_rng_state()
        model.zero_grad()
        plain.zero_grad()
        ours = graphed(data)
        ours.sum().backward()
        torch.set_rng_state(generator)
        theirs = plain(data)
        theirs.sum().backward()
        assert torch.equal(ours, theirs)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)


def test_a_callable_without_parameters() -> None:
    """test_graph_make_graphed_callables_parameterless_nograd_module."""
    graphed = torch.cuda.make_graphed_callables(nn.ReLU(), (full(1),))
    assert graphed(full(-4)).tolist() == [0, 0, 0] and graphed(full(4)).tolist() == [4, 4, 4]


def test_callables_in_one_pool() -> None:
    """test_graph_make_graphed_callables_same_pool."""
    pool, x = torch.cuda.graph_pool_handle(), torch.ones(2, 4, device="cuda")
    layers = [nn.Linear(4, 4).cuda() for _ in range(2)]
    expected = layers[1](layers[0](x * 3))
    graphed = [torch.cuda.make_graphed_callables(layer, (x,), pool=pool) for layer in layers]
    assert torch.equal(graphed[1](graphed[0](x * 3)), expected)


def test_accumulated_gradients_of_callables_are_wrong() -> None:
    """pytorch#181723, open: the gradients that a callable returns are overwritten by its next run."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8).cuda()
    plain = copy.deepcopy(model)
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(4, 8, device="cuda"),))
    for parameter in model.parameters():
        parameter.grad = None
    for _ in range(3):
        x = torch.randn(4, 8, device="cuda")
        graphed(x).sum().backward()
        plain(x).sum().backward()
    assert (model.weight.grad - plain.weight.grad).abs().max() > 0.1


def test_lstm_dropout_is_fresh() -> None:
    """test_graph_cudnn_dropout."""
    model, x = nn.LSTM(4, 4, 2, dropout=0.5).cuda(), torch.randn(3, 2, 4, device="cuda")
    model(x)
    graph, (y, _) = captured(lambda: model(x))
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)


def test_scaler_and_fused_optimizer_are_captured() -> None:
    """test_graph_scaling_fused_optimizers."""
    model, x = nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
    twin = copy.deepcopy(model)

    def prepared(net: nn.Module) -> Any:
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1, fused=True, capturable=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0)

        def step() -> None:
            optimizer.zero_grad()
            scaler.scale(net(x).square().sum()).backward()
            scaler.step(optimizer)

        step()
        scaler.update()
        return step, scaler

    (step, _), (twin_step, twin_scaler) = prepared(model), prepared(twin)
    graph, _ = captured(step)
    for _ in range(3):
        graph.replay()
        twin_step()
        twin_scaler.update()
    assert torch.equal(model.weight, twin.weight)


def test_a_cpu_scalar_argument_is_baked_in() -> None:
    """test_htod in test/dynamo/test_cudagraphs.py: why the backend does not capture it."""
    x, scalar = full(1), torch.tensor(2.0)
    graph, y = captured(lambda: x + scalar)
    scalar.fill_(10)
    graph.replay()
    assert y.tolist() == [3, 3, 3]


def test_a_constant_of_the_host_may_change_inside() -> None:
    """test_mutate_constant in test/dynamo/test_cudagraphs.py."""

    def body() -> torch.Tensor:
        constant = torch.tensor(1.0)
        constant.add_(2)
        return full(1) * constant

    graph, y = captured(body)
    graph.replay()
    assert y.tolist() == [3, 3, 3] == body().tolist()


def test_an_input_that_the_step_changes() -> None:
    """test_mutate_input in test/dynamo/test_cudagraphs.py: only the static input is changed."""
    static, caller = full(0), full(0)
    graph, y = captured(lambda: static.add_(3))
    static.copy_(caller)
    graph.replay()
    assert y.tolist() == [3, 3, 3] and caller.tolist() == [0, 0, 0]


def test_a_buffer_that_the_step_changes() -> None:
    """test_mutation_on_inp in test/inductor/test_cudagraph_trees.py, its half about a buffer."""
    buffer, x = full(0), full(2)
    graph, _ = captured(lambda: buffer.add_(x))
    for _ in range(3):
        graph.replay()
    assert buffer.tolist() == [6, 6, 6]


def test_an_output_argument_is_written() -> None:
    """test_mutation_reinplaced in test/inductor/test_cudagraph_trees.py."""
    x, out = full(1).bool(), full(0).bool()
    graph, _ = captured(lambda: torch.logical_xor(x, x.logical_not(), out=out))
    assert not out.any()
    graph.replay()
    assert out.all()


def test_a_new_parameter_is_not_seen() -> None:
    """test_unstable_ptr in test/inductor/test_cudagraph_trees.py, which raises for this reason."""
    model, x = nn.Linear(3, 3, bias=False).cuda(), torch.ones(1, 3, device="cuda")
    graph, y = captured(lambda: model(x))
    graph.replay()
    before = y.clone()
    model.weight.data = torch.zeros(3, 3, device="cuda")
    graph.replay()
    assert torch.equal(y, before) and not torch.equal(y, model(x))


def test_another_body_after_a_reset() -> None:
    """test_graph_capture_reset_recapture."""
    x = full(3)
    graph, y = captured(lambda: x + 1)
    graph.replay()
    assert y.tolist() == [4] * 3
    graph.reset()
    with torch.cuda.graph(graph):
        z = (x * 2).sum()
    x.fill_(5)
    graph.replay()
    assert z.item() == 30 and y.tolist() == [4] * 3


def test_products_captured_again_and_again() -> None:
    """test_repeat_graph_capture_cublas_workspace_memory."""
    x = torch.randn(8, 8, device="cuda")
    for _ in range(5):
        graph, y = captured(lambda: x @ x)
        graph.replay()
        assert torch.equal(y, x @ x)


def test_memory_that_runs_out_leaves_the_device_usable() -> None:
    """test_graph_capture_oom."""
    x = full(1)
    with pytest.raises(RuntimeError, match="memory"):
        captured(lambda: (x + 1, torch.empty(1 << 50, device="cuda")))
    graph, y = captured(lambda: x + 1)
    graph.replay()
    assert y.tolist() == [2] * 3


def test_a_graph_may_change_the_output_of_an_earlier_one() -> None:
    """test_mutation_cudagraph_managed_tensors in test/inductor/test_cudagraph_trees.py: in one pool."""
    x = full(1)
    first, y = captured(lambda: x * 2)
    second, _ = captured(lambda: y.add_(1), pool=first.pool())
    for value in (1, 4):
        x.fill_(value)
        first.replay()
        second.replay()
        assert y.tolist() == [2 * value + 1] * 3


def test_an_external_event_may_be_waited_for_in_a_capture() -> None:
    """test_graph_external_wait_and_record: without `external` the capture is refused."""
    x, other = full(1), torch.cuda.Stream()
    event = torch.cuda.Event(external=True)
    event.record(other)

    def body() -> torch.Tensor:
        torch.cuda.current_stream().wait_event(event)
        y = x + 1
        event.record()
        return y

    graph, y = captured(body)
    graph.replay()
    assert y.tolist() == [2] * 3
    plain = torch.cuda.Event()
    plain.record(other)
    with pytest.raises(RuntimeError, match="previous error during capture"):
        captured(lambda: (torch.cuda.current_stream().wait_event(plain), x + 1))


def test_a_graph_holds_no_work_of_another_device() -> None:
    """test_multiple_devices_msg and test_multi_device in test/inductor/test_cudagraph_trees.py."""
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        captured(lambda: full(1) + torch.ones(3, device="cuda:1").cuda())
