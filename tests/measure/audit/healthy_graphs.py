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


def inputs_and_targets_of_a_loader() -> None:
    net, static_input, static_target = model(), batch(), batch()
    graph, loss = captured(lambda: (net(static_input) - static_target).square().mean())
    data = [(batch(float(value)), batch(value + 1.0)) for value in range(3)]
    for x, target in data:
        static_input.copy_(x)
        static_target.copy_(target)
        graph.replay()
        loss.item()


class Runner:
    """Decodes with a graph for each batch size, all of which read the same large buffers."""

    def __init__(self) -> None:
        self.net, self.graphs = model(), {}
        buffers = {"ids": torch.zeros(4, 4, device="cuda"), "out": torch.zeros(4, 4, device="cuda")}
        for size in (4, 2, 1):
            self.graphs[size], _ = captured(lambda n=size: self._forward(buffers, n))
        self.buffers = buffers

    def _forward(self, buffers: dict[str, torch.Tensor], size: int) -> None:
        buffers["out"][:size] = self.net(buffers["ids"][:size])

    def run(self, ids: torch.Tensor) -> torch.Tensor:
        size = ids.size(0)
        graph = next(self.graphs[each] for each in (1, 2, 4) if each >= size)
        self.buffers["ids"].zero_()
        self.buffers["ids"][:size] = ids
        graph.replay()
        return self.buffers["out"][:size]


def buffers_for_all_batch_sizes() -> None:
    runner = Runner()
    for size in (1, 2, 3, 4):
        runner.run(torch.full((size, 4), float(size), device="cuda")).cpu()


class ForOneTensor:
    """Captures the caller's tensor, and runs eagerly for another one."""

    def __init__(self, example: torch.Tensor) -> None:
        self.net, self.example = model(), example
        self.graph, self.out = captured(lambda: self.net(self.example))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.data_ptr() != self.example.data_ptr():
            return self.net(x)
        self.graph.replay()
        return self.out


def caller_that_fills_its_own_tensor() -> None:
    x = batch()
    call = ForOneTensor(x)
    for value in range(3):
        call(x.fill_(float(value)))
        call(batch(float(value)))
        call(x)


class AfterWarmup:
    """Captures in the third call; later calls copy all of their arguments at once."""

    def __init__(self) -> None:
        self.net, self.calls = model(), 0

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls < 3:
            return self.net(*inputs)
        if self.calls == 3:
            self.inputs = [each.clone() for each in inputs]
            self.graph, self.out = captured(lambda: self.net(*self.inputs))
        torch._foreach_copy_(self.inputs, list(inputs))
        self.graph.replay()
        return self.out.clone()


def wrapper_that_captures_after_its_warmup() -> None:
    call = AfterWarmup()
    for value in range(6):
        call(batch(float(value)))


def decoder_with_a_position() -> None:
    cache, token = torch.zeros(8, 4, device="cuda"), torch.zeros(1, 4, device="cuda")
    position = torch.zeros(1, dtype=torch.long, device="cuda")
    net = model()

    def decode() -> torch.Tensor:
        cache.index_copy_(0, position, net(token))
        return cache.sum(0, keepdim=True)

    graph, out = captured(decode)
    new = torch.ones(1, 4, device="cuda")
    for step in range(4):
        token.copy_(new)
        position.fill_(step)
        graph.replay()
        new = out / 2


class Prefetched:
    """Gets batches that its loader has put into the captured tensor before."""

    def __init__(self) -> None:
        self.x, self.net, self.steps = batch(), model(), 0
        self.graph, self.loss = captured(lambda: self.net(self.x).mean())

    def prefetch(self, x: torch.Tensor) -> torch.Tensor:
        self.x.copy_(x * 2)
        return x

    def step(self, x: torch.Tensor) -> float:
        self.steps += 1
        self.graph.replay()
        return self.loss.item()


def loader_that_copies() -> None:
    trainer = Prefetched()
    for value in range(3):
        trainer.step(trainer.prefetch(batch(float(value))))


def copies_that_count_no_version() -> None:
    x, values = batch(), [batch(float(value)) for value in range(3)]
    static = x
    graph, _ = captured(lambda: x * 2)
    for x in values:
        static.data.copy_(x)
        graph.replay()


def graphs_for_two_buffers() -> None:
    buffers = [batch(0.0), batch(1.0)]
    engine, graphs = Engine(), []
    for engine.token in buffers:
        graphs.append(captured(lambda: engine.token * 2))
    for step in range(4):
        graphs[step % 2][0].replay()
        graphs[step % 2][1].clone()


def stages_of_a_pipeline() -> None:
    first, second, x = model(), model(), batch()
    hidden = batch()
    front, _ = captured(lambda: hidden.copy_(first(x)))
    back, out = captured(lambda: second(hidden).tanh())

    def step(new: torch.Tensor) -> torch.Tensor:
        x.copy_(new)
        front.replay()
        back.replay()
        return out.clone()

    for value in range(3):
        step(batch(float(value)))


def fixed_batch_with_new_targets() -> None:
    x, net = batch(), model()
    graph, out = captured(lambda: net(x))

    def loss(target: torch.Tensor) -> float:
        graph.replay()
        return (out - target).square().mean().item()

    for value in range(3):
        loss(batch(float(value)))


def denoising_with_a_schedule() -> None:
    net, scale = model(), 0.5
    with torch.inference_mode():
        latents, sigma = batch(), torch.ones((), device="cuda")
        graph, noise = captured(lambda: net(latents) * sigma * scale)
        current = batch(2.0)
        for step in range(4):
            latents.copy_(current)
            sigma.fill_(1.0 / (step + 1))
            graph.replay()
            current = current - noise


def policy_that_acts_and_learns() -> None:
    with torch.enable_grad():
        policy, obs = model(), batch()
        optimizer = torch.optim.Adam(policy.parameters(), 0.1)
        with torch.no_grad():
            graph, action = captured(lambda: policy(obs).tanh())
        for value in range(3):
            obs.copy_(batch(float(value)))
            graph.replay()
            (policy(batch()) - action.clone()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


class Cache:
    def __init__(self, value: float = 0.0) -> None:
        self.keys = torch.full((8, 4), value, device="cuda")


def engine_of_two_batches() -> None:
    """Each has a cache object and a graph, and they take turns."""

    class Decoder:
        def __init__(self) -> None:
            self.requests = [Cache(), Cache()]
            self.graphs = [self.capture(each) for each in self.requests]

        def capture(self, request: Cache) -> Any:
            self.request = request
            return captured(lambda: self.request.keys.add_(1).sum())[0]

    decoder = Decoder()
    for turn in (0, 1, 0, 0, 1):
        decoder.request = decoder.requests[1 - turn]
        decoder.graphs[turn].replay()


HEALTHY = (
    copied_weights, copied_inputs, shared_pool, captured_again, only_a_shape, held_by_a_view,
    updated_buffer, in_place_cache, trained, copied_outputs, losses_as_numbers, losses_added_up,
    view_that_is_made_once, two_results_read_in_time, sampled_logits, graph_for_each_batch_size,
    parts_of_an_output, emptied_list, rollout_into_a_buffer, whole_training_step,
    inputs_and_targets_of_a_loader, buffers_for_all_batch_sizes, caller_that_fills_its_own_tensor,
    wrapper_that_captures_after_its_warmup, decoder_with_a_position, loader_that_copies,
    copies_that_count_no_version, graphs_for_two_buffers, stages_of_a_pipeline,
    fixed_batch_with_new_targets, denoising_with_a_schedule, policy_that_acts_and_learns,
    engine_of_two_batches,
)  # fmt: skip
