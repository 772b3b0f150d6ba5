"""The pieces of work that are timed on a GPU, by their names, with torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_TINY = (64, 64)
_LARGE_BYTES = 256 << 20
SIDES = (1024, 2048, 4096, 8192)  # of products: what a GPU reaches depends on it
TOKENS = (512, 1024, 4096)
GRAPHS = (10, 100, 1000)  # nodes of the graphs whose launch is timed
CHAINS = (50, 150)  # operators of the chains that are differentiated
MIXED = (20, 200)  # rounds of different kernels in a graph
_ROUND = 5  # kernels of such a round
_MIXED_SHAPE = (256, 1024)  # of what they compute


@dataclass(frozen=True, slots=True)
class Work:
    """`amount`: bytes, operations or nodes of one call. `together`: how many may be in the queue.

    `before` makes what one call uses up, and is no part of its time.
    """

    call: Callable[[], object]
    amount: float = 0.0
    together: int = 100  # far fewer than it holds, so that the host never waits for the device
    before: Callable[[], object] | None = None


def make_work(device: torch.device) -> dict[str, Work]:
    """Every piece of work, with its tensors on the device."""
    import torch

    tiny = torch.ones(_TINY, device=device)
    work = {**_host_work(torch, tiny), **_small_kernels(torch, tiny), **_large(torch, device)}
    return {**work, **_products(torch, device), **_copies(torch, device), **_graphs(torch, tiny)}


def _host_work(torch: Any, tiny: torch.Tensor) -> dict[str, Work]:
    wanting = tiny.clone().requires_grad_()
    module = torch.nn.Identity()
    tensors = [tiny.clone() for _ in range(30)]
    square = tiny.clone()
    return {
        "in place": Work(lambda: square.add_(1)),
        "with result": Work(lambda: tiny.add(1)),
        "view": Work(lambda: tiny.view(-1)),
        "recorded": Work(lambda: wanting.mul(2)),
        "not recorded": Work(lambda: tiny.mul(2)),
        "product": Work(lambda: torch.mm(tiny, tiny)),
        "module": Work(lambda: module(tiny)),
        "foreach": Work(lambda: torch._foreach_add_(tensors, 1)),
        **{f"backward {length}": _backward(torch, wanting, length) for length in CHAINS},
        "synchronize": Work(lambda: (square.add_(1), torch.cuda.synchronize())),
    }


def _backward(torch: Any, leaf: torch.Tensor, length: int) -> Work:
    """The backward pass alone, from a gradient to a gradient that nobody adds up."""
    ready: list[torch.Tensor] = []
    gradient = torch.ones_like(leaf)

    def forward() -> None:
        tensor = leaf
        for _ in range(length):
            tensor = tensor * 2
        ready[:] = [tensor]

    def backward() -> object:
        return torch.autograd.grad(ready, leaf, gradient)

    return Work(backward, length, 1, forward)


def _small_kernels(torch: Any, tiny: torch.Tensor) -> dict[str, Work]:
    index = torch.zeros(16, dtype=torch.long, device=tiny.device)
    heads = tiny.reshape(1, 4, 16, 64).half()
    return {
        "small stream": Work(lambda: tiny + tiny),
        "small strided": Work(lambda: tiny + tiny.t()),
        "small reduce": Work(lambda: tiny.sum()),
        "small normalize": Work(lambda: torch.softmax(tiny, -1)),
        "small concat": Work(lambda: torch.cat([tiny, tiny])),
        "small gather": Work(lambda: tiny.index_select(0, index)),
        "small matmul": Work(lambda: torch.mm(tiny, tiny)),
        "small attention": Work(
            lambda: torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        ),
    }


def _large(torch: Any, device: torch.device) -> dict[str, Work]:
    """Kernels bound by bandwidth; amounts are bytes read and written."""
    rows = torch.ones(_LARGE_BYTES // 2 // 1024, 1024, dtype=torch.half, device=device)
    turned = torch.ones(1024, rows.shape[0], dtype=torch.half, device=device).t()
    index = torch.arange(rows.shape[0], device=device)
    row = torch.ones(1024, dtype=torch.half, device=device)
    moved = 2.0 * rows.nbytes
    return {
        "large stream": Work(lambda: rows + 1, moved),
        "large strided": Work(lambda: turned + rows, 3.0 * rows.nbytes),
        "large sliced": Work(lambda: rows[:, ::2] + row[::2], 1.0 * rows.nbytes),
        "large reduce": Work(lambda: rows.sum(-1), rows.nbytes),
        "large normalize": Work(lambda: torch.softmax(rows, -1), moved),
        "large concat": Work(lambda: torch.cat([rows, rows]), 2 * moved),
        "large gather": Work(lambda: rows.index_select(0, index), moved),
    }


def _products(torch: Any, device: torch.device) -> dict[str, Work]:
    """Square products; amounts are operations."""

    def product(dtype: Any, side: int) -> Work:
        left = torch.ones(side, side, dtype=dtype, device=device)
        return Work(lambda: left @ left, 2.0 * side**3)

    found = {f"bf16 {side}": product(torch.bfloat16, side) for side in SIDES}
    attention = torch.nn.functional.scaled_dot_product_attention
    for tokens in TOKENS:
        heads = torch.ones(8, 16, tokens, 64, dtype=torch.half, device=device)
        operations = 4.0 * heads.numel() * tokens
        found[f"attention {tokens}"] = Work(_of(attention, heads), operations)
    return found


def _of(attention: Any, heads: torch.Tensor) -> Callable[[], object]:
    return lambda: attention(heads, heads, heads)


def _copies(torch: Any, device: torch.device) -> dict[str, Work]:
    """Copies between host and device; amounts are bytes."""
    there = torch.empty(64 << 20, dtype=torch.uint8, device=device)
    pageable = torch.empty(64 << 20, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    return {
        "upload pinned": Work(lambda: there.copy_(pinned, non_blocking=True), there.nbytes),
        "upload pageable": Work(lambda: there.copy_(pageable), there.nbytes),
        "download pinned": Work(lambda: pinned.copy_(there, non_blocking=True), there.nbytes),
    }


def _graphs(torch: Any, tiny: torch.Tensor) -> dict[str, Work]:
    """Graphs of one trivial kernel and of different ones, each in several sizes; amounts are nodes."""
    value = tiny.clone()
    found = {}
    for nodes in (*GRAPHS, 2000):
        found[f"graph of {nodes}"] = _captured(
            torch, _repeated(lambda: value.add_(1), nodes), nodes
        )
    mixed = torch.rand(*_MIXED_SHAPE, device=tiny.device)
    for rounds in MIXED:
        nodes = _ROUND * rounds
        found[f"mixed graph of {rounds}"] = _captured(torch, _mixed(torch, mixed, rounds), nodes)
    found["mixed kernels"] = Work(_mixed(torch, mixed, MIXED[0]), _ROUND * MIXED[0])
    return found


def _repeated(call: Callable[[], object], times: int) -> Callable[[], object]:
    def calls() -> None:
        for _ in range(times):
            call()

    return calls


def _mixed(torch: Any, first: torch.Tensor, rounds: int) -> Callable[[], object]:
    """Kernels of a few us that each wait for the one before, as those of a model do."""

    def calls() -> object:
        value = first
        for _ in range(rounds):
            value = torch.softmax(value.tanh(), -1)
            value = value + value.sum(-1, keepdim=True)
            value = torch.nn.functional.layer_norm(value, (value.shape[-1],))
        return value

    return calls


def _captured(torch: Any, call: Callable[[], object], nodes: int) -> Work:
    """The replay, with what the graph uses and does not keep alive itself."""
    graph = torch.cuda.CUDAGraph()
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept = call()
    return Work(lambda: (graph.replay(), kept, call), nodes, 1)
