"""The emulated device for tests: a fixture, an observer, and a capture of a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.operators import Call
from graphdoctor.values.host_events import HostEvent


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    """The test runs on the emulated device."""
    with EmulatedDevice() as emulated:
        yield emulated


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """In the tests that import it: eager and replays add in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Seen:
    """Keeps the names of operators, and the events."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fallbacks: list[str] = []
        self.events: list[tuple[str, str]] = []

    def before(self, call: Call) -> None:
        pass

    def after(self, call: Call) -> None:
        self.calls.append(call.facts.base_name)
        if call.fallback is not None:
            self.fallbacks.append(call.fallback)

    def event(self, event: HostEvent) -> None:
        self.events.append((str(event.__struct_config__.tag), event.name))


def captured(body: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    """A graph of what the body does, and what it returned."""
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        outputs = body()
    return graph, outputs
