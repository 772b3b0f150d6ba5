"""GD109, GD116 and GD118: queries, streams and graphs inside the step."""

from __future__ import annotations

import time
from collections import deque

import torch
from torch import nn

from tests.rules.advice.variant import Variants
from tests.support.diagnosing import cuda

STREAMS = Variants()


def rows() -> torch.Tensor:
    """The same in each step: graphs draw while they are captured."""
    return torch.arange(-16.0, 16.0, device="cuda").view(8, 4) / 8


QUERIED = "Query outside the step, after the replay"


def doubled() -> object:
    """The cure of timers and polls: the step without them."""
    return lambda x: (x @ x.T).relu() * 2, (cuda(8, 4),)


@STREAMS.before("GD109", "around the replay")
def layer_timed_by_events() -> object:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def step(x):
        start.record()
        y = (x @ x.T).relu()
        end.record()
        end.synchronize()
        start.elapsed_time(end)
        return y * 2

    return step, (cuda(8, 4),)


STREAMS.after(doubled)


class TimesLastCall(nn.Module):
    """Reads the time of the call before, for which the CPU does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.start.record()
        self.end.record()

    def forward(self, x):
        if self.end.query():
            self.start.elapsed_time(self.end)
        self.start.record()
        y = (x @ x.T).relu()
        self.end.record()
        return y * 2


@STREAMS.before("GD109", "around the replay")
def last_call_timed() -> object:
    return TimesLastCall(), (cuda(8, 4),)


STREAMS.after(doubled)


@STREAMS.before("GD109", QUERIED)
def polled_until_done() -> object:
    def step(x):
        y = (x @ x.T).relu()
        while not torch.cuda.current_stream().query():
            time.sleep(0.001)
        return y * 2

    return step, (cuda(8, 4),)


STREAMS.after(doubled)


@STREAMS.before("GD109", QUERIED)
def idle_streams_logged() -> object:
    def step(x):
        y = (x @ x.T).relu()
        log = f"{torch.cuda.current_stream().query()} {torch.cuda.default_stream().query()}"
        return y * 2 if log else y

    return step, (cuda(8, 4),)


STREAMS.after(doubled)


@STREAMS.before("GD109", "around the replay")
def finished_outputs_let_go() -> object:
    kept: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()

    def step(x):
        while kept and kept[0][0].query():
            kept.popleft()
        y = (x @ x.T).relu()
        event = torch.cuda.Event()
        event.record()
        kept.append((event, y))
        return y * 2

    return step, (cuda(8, 4),)


STREAMS.after(doubled)

FORK = "Fork with side.wait_stream"
EARLIER = "before the step"


def branches(*, forks: bool = True, joins: int = 2) -> object:
    """Two branches of a block on streams of their own."""
    sides = [torch.cuda.Stream(), torch.cuda.Stream()]

    def step(x):
        outs = []
        for side in sides:
            if forks:
                side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                outs.append(x.relu() if side is sides[0] else x.tanh())
        for side in sides[:joins]:
            torch.cuda.current_stream().wait_stream(side)
        return x * 2, *outs

    return step, (cuda(8, 4),)


@STREAMS.before("GD116", FORK)
def branches_not_forked() -> object:
    return branches(forks=False)


STREAMS.after(branches)


@STREAMS.before("GD116", FORK)
def second_branch_not_joined() -> object:
    return branches(joins=1)


STREAMS.after(branches)


def prefetched(*, inside: bool) -> object:
    """A batch that a side stream normalizes for the step that comes next."""
    side, batch, ready = (
        torch.cuda.Stream(),
        torch.ones(8, 4, device="cuda"),
        torch.zeros(8, 4, device="cuda"),
    )

    def preload():
        with torch.cuda.stream(side):
            ready.copy_(batch).mul_(0.5)

    preload()
    torch.cuda.current_stream().wait_stream(side)

    def step(x):
        if inside:
            torch.cuda.current_stream().wait_stream(side)
        y = x * ready
        if inside:
            preload()
        return y

    return step, (cuda(8, 4),)


@STREAMS.before("GD116", EARLIER)
def next_batch_preloaded() -> object:
    return prefetched(inside=True)


@STREAMS.after
def next_batch_preloaded_outside() -> object:
    return prefetched(inside=False)


def awaited(*, inside: bool) -> object:
    """Weights that a side stream uploads once, and an event that says when they are there."""
    side, ready = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        weight = torch.ones(4, 4, device="cuda")
        ready.record(side)
    if not inside:
        torch.cuda.current_stream().wait_event(ready)

    def step(x):
        if inside:
            torch.cuda.current_stream().wait_event(ready)
        return x @ weight

    return step, (cuda(8, 4),)


@STREAMS.before("GD116", EARLIER)
def uploaded_weights_awaited() -> object:
    return awaited(inside=True)


@STREAMS.after
def uploaded_weights_awaited_before() -> object:
    return awaited(inside=False)


def offloaded(*, joins: bool) -> object:
    """Activations that a side stream copies to pinned memory."""
    offload, host = torch.cuda.Stream(), torch.empty(8, 4).pin_memory()

    def step(x):
        y = x.relu()
        offload.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(offload):
            host.copy_(y, non_blocking=True)
            y.record_stream(offload)
        if joins:
            torch.cuda.current_stream().wait_stream(offload)
        return y * 2

    return step, (cuda(8, 4),)


@STREAMS.before("GD116", "join with torch.cuda.current_stream().wait_stream(offload)")
def activations_offloaded() -> object:
    return offloaded(joins=False)


@STREAMS.after
def activations_offloaded_and_joined() -> object:
    return offloaded(joins=True)


def ordered_by_events(*, joins: bool) -> object:
    side, forked, done = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()

    def step(x):
        forked.record()
        side.wait_event(forked)
        with torch.cuda.stream(side):
            y = x.relu()
            done.record(side)
        z = x.tanh()
        if joins:
            torch.cuda.current_stream().wait_event(done)
        return y, z

    return step, (cuda(8, 4),)


@STREAMS.before("GD116", FORK)
def forked_by_event() -> object:
    return ordered_by_events(joins=False)


@STREAMS.after
def forked_and_joined_by_event() -> object:
    return ordered_by_events(joins=True)


ORIGINAL = "Call the original code instead of its graph"


def block() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
    nn.init.constant_(made[0].weight, 0.5)
    nn.init.zeros_(made[0].bias)
    return made


def by_make_graphed_callables(*, graphed: bool, trains: bool) -> object:
    layer = block()
    if graphed:
        layer = torch.cuda.make_graphed_callables(layer, (rows().requires_grad_(trains),))

    def step(x):
        if not trains:
            with torch.no_grad():
                return layer(x) + 1
        layer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        return loss.detach()

    return step, (rows().requires_grad_(trains),)


@STREAMS.before("GD118", ORIGINAL)
def graphed_module() -> object:
    return by_make_graphed_callables(graphed=True, trains=False)


@STREAMS.after
def original_module() -> object:
    return by_make_graphed_callables(graphed=False, trains=False)


@STREAMS.before("GD118", ORIGINAL)
def graphed_module_trained() -> object:
    return by_make_graphed_callables(graphed=True, trains=True)


@STREAMS.after
def original_module_trained() -> object:
    return by_make_graphed_callables(graphed=False, trains=True)


@STREAMS.before("GD118", ORIGINAL)
def graphed_function() -> object:
    function = torch.cuda.make_graphed_callables(lambda x: x.softmax(1), (rows(),))
    return lambda x: function(x).log(), (rows(),)


@STREAMS.after
def original_function() -> object:
    return lambda x: x.softmax(1).log(), (rows(),)


class Runner:
    """A graph for each batch size, captured when the size comes first."""

    def __init__(self, function) -> None:
        self.function = function
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}

    def capture(self, x) -> None:
        static, graph = x.clone(), torch.cuda.CUDAGraph()
        self.function(static)
        with torch.cuda.graph(graph):
            out = self.function(static)
        self.graphs[len(x)] = graph, static, out

    def __call__(self, x):
        graph, static, out = self.graphs[len(x)]
        static.copy_(x)
        graph.replay()
        return out.clone()


@STREAMS.before("GD118", ORIGINAL)
def graph_by_batch_size() -> object:
    runner = Runner(lambda x: x.relu() * 3)
    for size in (4, 8):
        runner.capture(cuda(size, 4))
    return lambda x: runner(x) + 1, (rows(),)


@STREAMS.after
def function_of_all_batch_sizes() -> object:
    return lambda x: x.relu() * 3 + 1, (rows(),)


@STREAMS.before("GD118", ORIGINAL)
def denoiser_replayed_in_a_loop() -> object:
    layer, runner = block(), None
    with torch.no_grad():
        runner = Runner(layer)
        runner.capture(cuda(8, 4))

    def step(x):
        for _ in range(3):
            x = x - 0.1 * runner(x)
        return x

    return step, (rows(),)


@STREAMS.after
def denoiser_called_in_a_loop() -> object:
    layer = block()

    @torch.no_grad()
    def step(x):
        for _ in range(3):
            x = x - 0.1 * layer(x)
        return x

    return step, (rows(),)
