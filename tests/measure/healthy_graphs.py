"""Small programs with CUDA graphs that are right, many of them close to one that is not."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.emulated import captured


def model() -> torch.nn.Linear:
    return torch.nn.Linear(4, 4, device="cuda")


def batch(value: float = 1.0) -> torch.Tensor:
    return torch.full((2, 4), value, device="cuda")


class Engine:
    """Serves with a cache that it may reallocate."""

    def __init__(self) -> None:
        self.cache = torch.zeros(8, 4, device="cuda")
        self.token = torch.ones(4, device="cuda")
        self.graph, self.out = captured(lambda: self.cache.add_(self.token).sum())


def copied_weights() -> None:
    policy, other, x = model(), model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    for _ in range(2):
        policy.load_state_dict(other.state_dict())
        graph.replay()


def copied_inputs() -> None:
    x = torch.ones(2, 4, device="cuda")
    graph, out = captured(lambda: x * 2)
    for value in range(3):
        x.copy_(torch.full((2, 4), float(value), device="cuda"))
        graph.replay()
        out.clone()


def shared_pool() -> None:
    x = torch.ones(2, 4, device="cuda")
    first, middle = captured(lambda: x * 2)
    second, _ = captured(lambda: middle + 1, pool=first.pool())
    middle = torch.empty(0)
    first.replay()
    second.replay()


def captured_again() -> None:
    policy, x = model(), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: policy(x))
    graph.replay()
    policy.weight = torch.nn.Parameter(torch.zeros(4, 4, device="cuda"))
    graph, _ = captured(lambda: policy(x))
    graph.replay()


def only_a_shape() -> None:
    like = torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: torch.zeros_like(like) + 1)
    like = torch.empty(0)
    graph.replay()


def held_by_a_view() -> None:
    base = torch.ones(4, 4, device="cuda")
    graph, _ = captured(lambda: base[1:] * 2)
    rest = base[2:]
    base = torch.empty(0)
    graph.replay()
    rest.add_(1)


def updated_buffer() -> None:
    norm, x = torch.nn.BatchNorm1d(4, device="cuda"), torch.ones(2, 4, device="cuda")
    graph, _ = captured(lambda: norm(x))
    for _ in range(2):
        graph.replay()


def in_place_cache() -> None:
    engine = Engine()
    for _ in range(3):
        engine.cache.zero_()
        engine.graph.replay()


def trained() -> None:
    with torch.enable_grad():
        net, x = model(), torch.ones(2, 4, device="cuda")
        call = torch.cuda.make_graphed_callables(net, (x,))
        del x
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            call(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()


def copied_outputs() -> None:
    x, outputs = batch(), []
    graph, out = captured(lambda: x * 2)
    for _ in range(4):
        graph.replay()
        outputs.append(out.clone())
    torch.stack(outputs)


def losses_as_numbers() -> None:
    x, losses = batch(), []
    graph, loss = captured(lambda: x.sum())
    for _ in range(4):
        graph.replay()
        losses.append(loss.item())


def losses_added_up() -> None:
    x, total = batch(), torch.zeros((), device="cuda")
    graph, loss = captured(lambda: x.sum())
    for _ in range(4):
        graph.replay()
        total += loss.detach()


def view_that_is_made_once() -> None:
    x, first = batch(), None
    graph, out = captured(lambda: x * 2)
    for _ in range(4):
        graph.replay()
        first = out[0] if first is None else first
        first.sum().item()
        out[0].max().item()


def two_results_read_in_time() -> None:
    call: Any = torch.cuda.make_graphed_callables(model(), (batch(),))
    for _ in range(3):
        real = call(batch(1.0))
        real_loss = real.sum()
        fake = call(batch(2.0))
        (real_loss - fake.sum()).item()


def sampled_logits() -> None:
    engine, tokens = Engine(), []
    for _ in range(4):
        engine.graph.replay()
        logits = engine.out.view(1)
        tokens.append(logits.argmax(-1))


def graph_for_each_batch_size() -> None:
    runs = {}
    for size in (1, 2, 4):
        x = torch.ones(size, 4, device="cuda")
        runs[size] = (*captured(lambda x=x: x * 2), x)
    results = []
    for size in (1, 2, 4, 2, 1):
        graph, out, x = runs[size]
        x.copy_(torch.full((size, 4), float(size), device="cuda"))
        graph.replay()
        results.append(out.cpu())


def parts_of_an_output() -> None:
    x = batch()
    graph, out = captured(lambda: x * 2)
    for _ in range(4):
        graph.replay()
        rows = list(out.unbind())
        sum(row.sum().item() for row in rows)


def emptied_list() -> None:
    x, outputs = batch(), []
    graph, out = captured(lambda: x * 2)
    for _ in range(6):
        graph.replay()
        outputs.append(out)
        torch.cat(outputs).sum().item()
        outputs.clear()


def rollout_into_a_buffer() -> None:
    policy, obs, stored = model(), batch(), torch.zeros(4, 2, 4, device="cuda")
    graph, action = captured(lambda: policy(obs).tanh())
    for step in range(4):
        graph.replay()
        stored[step].copy_(action)
        policy.load_state_dict(model().state_dict())


def whole_training_step() -> None:
    with torch.enable_grad():
        net, x = model(), batch()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def step() -> torch.Tensor:
            loss = net(x).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        net(x).sum().backward()
        optimizer.zero_grad(set_to_none=True)
        graph, loss = captured(step)
        for _ in range(3):
            graph.replay()
            loss.item()


HEALTHY = (
    copied_weights, copied_inputs, shared_pool, captured_again, only_a_shape, held_by_a_view,
    updated_buffer, in_place_cache, trained, copied_outputs, losses_as_numbers, losses_added_up,
    view_that_is_made_once, two_results_read_in_time, sampled_logits, graph_for_each_batch_size,
    parts_of_an_output, emptied_list, rollout_into_a_buffer, whole_training_step,
)  # fmt: skip
