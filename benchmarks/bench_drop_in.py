"""Host time that `graphdoctor.capture` adds to each call: the guards, with nothing else in the way.

Without a GPU the replay, the copies of inputs and the clones of outputs are stubs, so that what is
left is the Python of the guards on this processor. With a GPU, whole calls are timed beside the same
copies, replay and clones made by hand, in blocks short enough never to wait for the GPU.

    python benchmarks/bench_drop_in.py
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import graphdoctor
from graphdoctor.drop_in.context import Context
from graphdoctor.drop_in.forward_graph import Traits
from graphdoctor.drop_in.module import drop_in_of
from graphdoctor.drop_in.replays import Replays
from graphdoctor.drop_in.signature import signature
from graphdoctor.drop_in.state_watch import StateWatch

BLOCKS = 60
CALLS = 50  # in a block; far below the 1024 launches that a stream queues


class Small(nn.Module):
    """Three inputs, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.one(x) * y + self.two(z)


class Bottleneck(nn.Module):
    """A block of ResNet-50's, narrow."""

    def __init__(self, down: bool) -> None:
        super().__init__()
        for index in (1, 2, 3):
            setattr(self, f"conv{index}", nn.Conv2d(8, 8, 1, bias=False))
            setattr(self, f"bn{index}", nn.BatchNorm2d(8))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = (
            nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)) if down else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet50_like() -> nn.Module:
    """ResNet-50's modules, parameters (161) and buffers (159), each small."""
    blocks = [Bottleneck(down=number == 0) for count in (3, 4, 6, 3) for number in range(count)]
    stem = (nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


class Layer(nn.Module):
    """A layer of BERT's, narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.output, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.up, self.down, self.last_norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) + mask
        x = self.norm(x + self.dropout(self.output(scores.softmax(-1) @ self.value(x))))
        return self.last_norm(x + self.dropout(self.down(nn.functional.gelu(self.up(x)))))


class BertLike(nn.Module):
    """BERT-base's modules and parameters (199), each small."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(32, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.layers = nn.ModuleList(Layer() for _ in range(12))
        self.pooler = nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(ids) + self.places(ids) + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x, mask)
        return torch.tanh(self.pooler(x[:, 0]))


def subjects(device: str) -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """The models with inputs, by name."""
    rows = tuple(torch.randn(4, 8, device=device) for _ in range(3))
    ids = torch.randint(0, 32, (2, 6), device=device)
    words = (ids, torch.zeros_like(ids), torch.zeros(2, 1, 6, device=device))
    image = (torch.randn(2, 3, 16, 16, device=device),)
    return {
        "small, 3 inputs": (Small().to(device).eval(), rows),
        "ResNet-50-like": (resnet50_like().to(device).eval(), image),
        "BERT-base-like": (BertLike().to(device).eval(), words),
    }


def median_us(call: Callable[[], object], settle: Callable[[], None]) -> float:
    """This thread's time on the processor, over blocks of calls, each begun on an idle device."""
    times = []
    for _ in range(BLOCKS):
        settle()
        start = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        times.append((time.thread_time_ns() - start) / CALLS / 1e3)
    settle()
    return statistics.median(times)


def stubbed(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[Replays, Any]:
    """Replays of a graph that does nothing."""
    replays = Replays(model, context=Context(), max_graphs=1, grow=lambda others: "")
    answer = torch.zeros(1)
    graph = SimpleNamespace(
        key=signature(inputs, {})[0],
        state=StateWatch({"model": model}),
        traits=Traits(repeats=True, launches=0),
        load=lambda tensors: None,
        replay=lambda: None,
        build=lambda tensors: answer,
    )
    replays.add(graph)  # type: ignore[arg-type]
    return replays, graph


def without_gpu() -> None:
    """Print what the guards cost here."""
    torch.cuda.current_stream = lambda: SimpleNamespace(cuda_stream=0)  # type: ignore[assignment]
    print(
        f"{'model':18}{'parameters':>11}{'modules':>9}{'before':>9}{'after':>9}{'a call':>9}   us"
    )
    for name, (model, inputs) in subjects("cpu").items():
        replays, graph = stubbed(model, inputs)
        whole = median_us(partial(replays.call, inputs, {}), lambda: None)
        after = median_us(graph.state.is_same, lambda: None)
        assert not replays.fallbacks
        counts = f"{len(list(model.parameters())):11}{len(list(model.modules())):9}"
        print(f"{name:18}{counts}{whole - after:9.1f}{after:9.1f}{whole:9.1f}")


def by_hand(graph: Any, inputs: tuple[torch.Tensor, ...]) -> object:
    """Copies of the inputs, a bare replay, and clones of the outputs."""
    graph.load(inputs)
    graph.replay()
    return graph.build(inputs)


def with_gpu() -> None:
    """Print whole calls beside the same work by hand."""
    print(f"{'model':18}{'by hand':>9}{'a call':>9}{'added':>9}{'after':>9}   us of host time")
    for name, (model, inputs) in subjects("cuda").items():
        fast = graphdoctor.capture(model, *inputs)
        (graph,) = drop_in_of(fast).replays.graphs

        settle = torch.cuda.synchronize
        hand = median_us(partial(by_hand, graph, inputs), settle)
        call = median_us(partial(fast, *inputs), settle)
        after = median_us(graph.state.is_same, settle)
        assert not fast.fallbacks, fast.fallbacks
        print(f"{name:18}{hand:9.1f}{call:9.1f}{call - hand:9.1f}{after:9.1f}")
        fast.release()


def main() -> None:
    """Measure what this machine can."""
    torch.set_num_threads(1)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}")
    with torch.no_grad():
        without_gpu() if not torch.cuda.is_available() else with_gpu()


if __name__ == "__main__":
    main()
