"""A model twice, one with graphed modules: what is done to both, and whether they are still equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.emulated.streams import EmulatedStream
from graphdoctor.graphs.modules import Choices, GraphedModules, graph_modules
from graphdoctor.target.state.snapshot import named_tensors, snapshot
from graphdoctor.target.state.tree import leaves

Action = Callable[["Side"], Any]


class Side:
    """One of the twins: a model and its optimizer."""

    def __init__(self, model: nn.Module, lr: float = 0.1) -> None:
        self.model = model
        wanted = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(wanted, lr=lr, momentum=0.9) if wanted else None

    def train(self, x: torch.Tensor, *, steps: bool = True, **kwargs: Any) -> torch.Tensor:
        if steps and self.optimizer is not None:
            self.optimizer.zero_grad()
        loss = total(self.model(x, **kwargs))
        loss.backward()
        if steps and self.optimizer is not None:
            self.optimizer.step()
        return loss.detach()

    def look(self, x: torch.Tensor, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.model(x, **kwargs)


def total(output: object) -> torch.Tensor:
    """A loss of every floating tensor in an output."""
    parts = [leaf for leaf in leaves(output, "").values() if isinstance(leaf, torch.Tensor)]
    return sum(
        (part.float().square().mean() for part in parts if part.is_floating_point()),
        torch.zeros((), device="cuda"),
    )


class Twins:
    """`both` does the same to an eager model and to its graphed twin, and compares everything."""

    def __init__(self, eager: Side, graphed: Side, made: GraphedModules) -> None:
        self.eager, self.graphed, self.made = eager, graphed, made
        self._seed = 100

    def both(self, action: Action) -> Any:
        self._seed += 1
        results = []
        for side in (self.eager, self.graphed):
            torch.manual_seed(self._seed)
            results.append((action(side), torch.rand(1)))
        assert_same(results[0], results[1])
        self.assert_equal_state()
        return results[1][0]

    def assert_equal_state(self) -> None:
        self.made.uninstall()
        try:
            wanted = named_tensors(vars(self.eager))
            found = named_tensors(vars(self.graphed))
        finally:
            self.made.install()
        assert list(wanted) == list(found)
        for path, tensor in wanted.items():
            assert_same(tensor, found[path], path)

    @property
    def reasons(self) -> list[str]:
        return list(self.made.fallbacks)


def assert_same(wanted: object, found: object, path: str = "") -> None:
    ours, theirs = leaves(wanted, path), leaves(found, path)
    assert list(ours) == list(theirs)
    for name, leaf in ours.items():
        other = theirs[name]
        if not isinstance(leaf, torch.Tensor):
            assert leaf == other, name
            continue
        assert isinstance(other, torch.Tensor), name
        assert leaf.dtype == other.dtype and leaf.stride() == other.stride(), name
        assert leaf.requires_grad == other.requires_grad, name
        # On a GPU the sum of a batch may be added up in another order.
        assert torch.equal(leaf, other) or (not is_emulated() and torch.allclose(leaf, other)), name


def is_emulated() -> bool:
    return issubclass(torch.cuda.Stream, EmulatedStream)


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (4, 8)), generator=generator).cuda()


@contextmanager
def twins(
    make: Callable[[], nn.Module],
    run: Sequence[Action] | None = None,
    *,
    paths: Sequence[str] = ("",),
    choices: Choices | None = None,
) -> Iterator[Twins]:
    """Two equal models; the modules at `paths` of the second are graphed as `run` uses them."""
    sides = []
    for _ in range(2):
        torch.manual_seed(0)
        sides.append(Side(make().cuda()))
    graphed = sides[1]
    start = snapshot(vars(graphed))
    actions = run or (lambda side: side.train(data()),)

    def observed() -> None:
        for action in actions:
            action(graphed)

    modules = {path: graphed.model.get_submodule(path) for path in paths}
    made = graph_modules(modules, observed, restore=start.restore, choices=choices)
    with made.installed():
        yield Twins(sides[0], graphed, made)
    made.release()


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with EmulatedDevice():
        yield
    torch.set_num_threads(threads)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 4)
    )


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def train(side: Side, seed: int = 0, **options: Any) -> torch.Tensor:
    return side.train(data(seed=seed), **options)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2))

    def forward(self, x: torch.Tensor, times: int = 2) -> torch.Tensor:
        for _ in range(times):
            x = self.layer(x)
        return x


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None = None
    kind: str = "plain"


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(
        self, x: torch.Tensor, *, extra: dict[str, Any] | None = None, scale: float = 1.0
    ) -> Answer:
        hidden = self.layer(x * scale)
        best = hidden.argmax(1)
        if extra is not None:
            hidden = hidden + extra["bias"][0]
        return Answer(hidden.tanh(), (hidden.relu(), best))
