"""What a call of a graphed module costs the host, by its parameters and modules -> one line for each model.

    python benchmarks/gpu/call_costs.py OUT.jsonl [--budget-s 60]

The models are chains of small layers that nobody uses, so that what is fitted to them judges no workload: `deep`
ones of many linear layers, `flat` ones whose parameters are all one module's, `bare` ones without parameters. Each
runs as `segments` and as `modules` do it. With the device idle before each call, the time until the call returns
is the host's: of the forward, and of the backward where it trains. The first line tells the machine and what
`graphdoctor calibrate --host` says of its host.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from kernels import about, write
from torch import nn

WIDTH, ROWS = 16, 8
CALLS = 40
_WARM_UPS = 5


class Deep(nn.Module):
    """So many linear layers, a module each."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu().tanh().sigmoid()
        return x


class Flat(nn.Module):
    """The same parameters and operators, all in one module."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        for number in range(size):
            self.register_parameter(f"weight{number}", nn.Parameter(torch.eye(WIDTH)))
            self.register_parameter(f"bias{number}", nn.Parameter(torch.zeros(WIDTH)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(self.size):
            weight, bias = getattr(self, f"weight{number}"), getattr(self, f"bias{number}")
            x = F.linear(x, weight, bias).relu().tanh().sigmoid()
        return x


class Bare(nn.Module):
    """So many modules without parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.ReLU(), nn.Tanh()) for _ in range(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * 1.5
        return x


KINDS: dict[str, type[nn.Module]] = {"deep": Deep, "flat": Flat, "bare": Bare}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget-s", type=float, default=600.0, help="no model begins later")
    args = parser.parse_args()
    ends = time.monotonic() + args.budget_s
    write(args.out, about())
    for case in cases():
        if time.monotonic() < ends:
            row = measured(*case)
            write(args.out, row)
            print(row, flush=True)


def cases() -> Iterator[tuple[str, int, str]]:
    """Kind, size and mode; what no other tells first."""
    for mode in ("inference", "training"):
        for size in (16, 1, 64, 4):
            yield "deep", size, mode
    for mode in ("inference", "training"):
        yield "flat", 64, mode
    yield "bare", 64, "inference"


def measured(kind: str, size: int, mode: str) -> dict[str, Any]:
    began = time.monotonic()
    torch.manual_seed(0)
    model = KINDS[kind](size).cuda().train(mode == "training")
    x = torch.rand(ROWS, WIDTH, device="cuda")
    found = {
        "eager": host_us(model, x, mode),
        "replay": _replay(model, x),
        "segments": _segments(model, x, mode),
        "modules": _modules(model, x, mode),
    }
    return {
        "kind": kind,
        "size": size,
        "mode": mode,
        "modules": sum(1 for _ in model.modules()),
        "parameters": sum(1 for _ in model.parameters()),
        "us": found,
        "took_s": round(time.monotonic() - began, 1),
    }


def _replay(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """The bare graph of the forward: what is called beside it costs the rest."""
    from graphdoctor.graphs.capture import Pool, record_graph
    from graphdoctor.graphs.cause import Refusal

    with torch.no_grad():
        made = record_graph(
            lambda: model(x), torch.cuda.Stream(), pool=Pool(), warm_up=lambda: model(x)
        )
    if isinstance(made, Refusal):
        raise RuntimeError(made.reason)
    found = host_us(lambda _: made.graph.replay(), x, "inference")
    made.graph.reset()
    return found


def _segments(model: nn.Module, x: torch.Tensor, mode: str) -> dict[str, float]:
    from graphdoctor.graphs.segments import Segments
    from graphdoctor.graphs.segments.backend import settings
    from graphdoctor.strategies.compilers.compiler import forget_compiled

    backend = Segments()
    with settings():
        compiled = torch.compile(model._call_impl, backend=backend)
        found = host_us(compiled, x, mode, model)
    found["graphs"] = backend.captured_parts
    found["guards"] = _guards(type(model).forward)
    backend.release()
    forget_compiled()
    return found


def _modules(model: nn.Module, x: torch.Tensor, mode: str) -> dict[str, float]:
    from graphdoctor.graphs.modules import graph_modules
    from graphdoctor.target import snapshot

    def run() -> None:
        _forward(model, x, mode, model)[1]()

    start = snapshot({"model": model})
    with _watched(mode):
        made = graph_modules({"": model}, run, restore=start.restore)
    with made.installed():
        found = host_us(model, x, mode)
    found["graphs"] = len(made.modules)
    made.release()
    return found


def host_us(
    call: Callable[..., Any], x: torch.Tensor, mode: str, model: nn.Module | None = None
) -> dict[str, float]:
    """The median time until a forward, and its backward, returns, where the device was idle before."""
    owner = model or call
    times: list[tuple[float, float]] = []
    with _watched(mode):
        for _ in range(_WARM_UPS + CALLS):
            forward_s, backward = _forward(call, x, mode, owner)
            times.append((forward_s, backward()))
    forward, backward_s = (median(each[_WARM_UPS:]) for each in zip(*times, strict=True))
    found = {"forward": round(forward * 1e6, 2)}
    return found | {"backward": round(backward_s * 1e6, 2)} if mode == "training" else found


def _forward(
    call: Callable[..., Any], x: torch.Tensor, mode: str, model: Any
) -> tuple[float, Callable[[], float]]:
    """One call, and what then runs its backward; both give seconds of the host."""
    if mode == "training":
        for parameter in model.parameters():
            parameter.grad = None
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = call(x)
    ended = time.perf_counter()

    def backward() -> float:
        if mode != "training":
            return 0.0
        loss = result.sum()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        loss.backward()
        return time.perf_counter() - begun

    return ended - start, backward


@contextmanager
def _watched(mode: str) -> Iterator[None]:
    with torch.set_grad_enabled(mode == "training"):
        yield


def _guards(forward: Any) -> int:
    """How many conditions Dynamo asks before each call."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    def leaves(manager: Any) -> int:
        below = list(manager.get_child_managers())
        if hasattr(manager, "get_key_value_managers"):  # of a dict
            for pair in manager.get_key_value_managers().values():
                below += [each for each in pair if each is not None]
        return len(manager.get_leaf_guards()) + sum(map(leaves, below))

    entries = _debug_get_cache_entry_list(forward.__code__)
    return sum(leaves(entry.guard_manager.root) for entry in entries)


if __name__ == "__main__":
    main()
