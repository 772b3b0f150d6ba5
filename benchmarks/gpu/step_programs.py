"""Six ordinary training programs, eager and made faster: by `graphdoctor.capture(step)`, by torch.compile, by hand.

    python benchmarks/gpu/step_programs.py [--json FILE] [--only NAMES] [--no-compile]

Each way trains from the same weights on the same batches. After the timing its losses are compared with
eager's, over the first steps; eager is run twice, so that its own differences are known. The version by
hand is what PyTorch's notes on CUDA graphs describe: static inputs, a warmup on a side stream, a fused
capturable optimizer, one graph for each branch. Figures are medians of blocks of steps, in turns with eager.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import graphdoctor

DEVICE = "cuda"
COMPARED = 24  # steps whose losses are compared
SKIPPED = 4  # steps that a version by hand runs before its capture
BLOCKS, STEPS = 15, 20
Batch = tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """One training program: a step, the batches that it gets in turn, and its modules."""

    step: Callable[..., torch.Tensor]
    batches: Sequence[Batch]
    modules: Sequence[nn.Module]


def adam(parameters: Any, by_hand: bool, lr: float = 1e-3) -> torch.optim.Optimizer:
    if by_hand:
        return torch.optim.Adam(parameters, lr=lr, fused=True, capturable=True)
    return torch.optim.Adam(parameters, lr=lr)


def residual_mlp(by_hand: bool, compiled: Callable[[Any], Any]) -> Program:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = (
                nn.LayerNorm(256),
                nn.Linear(256, 512),
                nn.Linear(512, 256),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(F.gelu(self.up(self.norm(x))))

    model = nn.Sequential(nn.Linear(64, 256), *(Block() for _ in range(12)), nn.Linear(256, 10)).to(
        DEVICE
    )
    optimizer, forward = adam(model.parameters(), by_hand), compiled(model)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        return loss

    batches = [(rand(128, 64), randint(10, 128)) for _ in range(8)]
    return Program(step, batches, [model])


def gpt(by_hand: bool, compiled: Callable[[Any], Any]) -> Program:
    """Four micro-batches for each step of AdamW, gradients clipped."""
    width, heads, length, words = 192, 6, 64, 256

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = (
                nn.Linear(width, 3 * width, bias=False),
                nn.Linear(width, width, bias=False),
            )
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n, t, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(6)))
            self.head = nn.Linear(width, words, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.blocks(self.words(x) + self.places.weight))

    model = GPT().to(DEVICE)
    kind = {"fused": True, "capturable": True} if by_hand else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, **kind)
    forward = compiled(model)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=DEVICE)
        for micro in range(4):
            loss = F.cross_entropy(forward(x[micro]).flatten(0, 1), y[micro].flatten()) / 4
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    batches = [(randint(words, 4, 8, length), randint(words, 4, 8, length)) for _ in range(8)]
    return Program(step, batches, [model])


def td3(by_hand: bool, compiled: Callable[[Any], Any]) -> Program:
    """The actor and the targets are updated in every second step."""

    def network(*sizes: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for a, b in pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1]).to(DEVICE)

    actor, critics = network(17, 256, 256, 6), [network(23, 256, 256, 1) for _ in range(2)]
    actor_target, targets = network(17, 256, 256, 6), [network(23, 256, 256, 1) for _ in range(2)]
    actor_target.load_state_dict(actor.state_dict())
    for target, critic in zip(targets, critics, strict=True):
        target.load_state_dict(critic.state_dict())
    critic_optimizer = adam([p for critic in critics for p in critic.parameters()], by_hand, 3e-4)
    actor_optimizer = adam(actor.parameters(), by_hand, 3e-4)
    slow = [p for net in (actor_target, *targets) for p in net.parameters()]
    fast = [p for net in (actor, *critics) for p in net.parameters()]
    act, first, second = compiled(actor), compiled(critics[0]), compiled(critics[1])

    def step(s: Any, a: Any, r: Any, s2: Any, done: Any, updates_policy: bool) -> torch.Tensor:
        with torch.no_grad():
            noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
            a2 = (actor_target(s2).tanh() + noise).clamp(-1, 1)
            both = torch.cat([s2, a2], 1)
            wanted = r + 0.99 * (1 - done) * torch.min(targets[0](both), targets[1](both))
        given = torch.cat([s, a], 1)
        loss = F.mse_loss(first(given), wanted) + F.mse_loss(second(given), wanted)
        critic_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        critic_optimizer.step()
        if updates_policy:
            actor_optimizer.zero_grad(set_to_none=True)
            (-first(torch.cat([s, act(s).tanh()], 1)).mean()).backward()
            actor_optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(slow, fast, 0.005)
        return loss.detach()

    batches = [
        (
            rand(256, 17),
            rand(256, 6),
            rand(256, 1),
            rand(256, 17),
            randint(2, 256, 1).float(),
            i % 2 == 1,
        )
        for i in range(8)
    ]
    return Program(step, batches, [actor, *critics])


def ppo(by_hand: bool, compiled: Callable[[Any], Any]) -> Program:
    """One minibatch of a PPO update, as cleanrl's."""
    body = nn.Sequential(nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()).to(DEVICE)
    value = nn.Sequential(
        nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    ).to(DEVICE)
    mean, spread = nn.Linear(64, 6).to(DEVICE), nn.Parameter(torch.zeros(1, 6, device=DEVICE))
    parameters = [*body.parameters(), *value.parameters(), *mean.parameters(), spread]
    optimizer = adam(parameters, by_hand, 3e-4)
    acts, values = compiled(body), compiled(value)

    def step(s: Any, a: Any, old: Any, advantage: Any, returns: Any) -> torch.Tensor:
        middle, scale = mean(acts(s)), spread.exp()
        log = (-0.5 * ((a - middle) / scale).square() - spread - 0.9189385).sum(1)
        ratio = (log - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
        error = 0.5 * (values(s).view(-1) - returns).square().mean()
        entropy = (0.5 + 0.9189385 + spread).sum()
        loss = policy + 0.5 * error - 0.001 * entropy
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        return loss.detach()

    batches = [(rand(64, 17), rand(64, 6), rand(64), rand(64), rand(64)) for _ in range(8)]
    return Program(step, batches, [body, value, mean])


def dlrm(by_hand: bool, compiled: Callable[[Any], Any]) -> Program:
    tables = nn.ModuleList(nn.EmbeddingBag(1000, 32, mode="sum") for _ in range(26)).to(DEVICE)
    bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()).to(DEVICE)
    top = nn.Sequential(nn.Linear(32 + 27 * 26 // 2, 128), nn.ReLU(), nn.Linear(128, 1)).to(DEVICE)
    parameters = [*tables.parameters(), *bottom.parameters(), *top.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, fused=by_hand or None)
    rows, columns = torch.tril_indices(27, 27, -1, device=DEVICE)
    below, above = compiled(bottom), compiled(top)

    def step(dense: Any, sparse: Any, clicks: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        x = below(dense)
        found = [table(sparse[:, place : place + 1]) for place, table in enumerate(tables)]
        every = torch.stack([x, *found], 1)
        crossed = torch.bmm(every, every.transpose(1, 2))[:, rows, columns]
        predicted = above(torch.cat([x, crossed], 1)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(predicted, clicks)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [(rand(512, 13), randint(1000, 512, 26), randint(2, 512).float()) for _ in range(8)]
    return Program(step, batches, [tables, bottom, top])


def cnn_amp(by_hand: bool, compiled: Callable[[Any], Any]) -> Program:
    """A ResNet of CIFAR's size under autocast in float16, with a GradScaler."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.one, self.two = (
                nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)
            )
            self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(x + self.norm2(self.two(F.relu(self.norm1(self.one(x))))))

    layers = [
        nn.Conv2d(3, 32, 3, padding=1),
        *(Block(32) for _ in range(9)),
        nn.AdaptiveAvgPool2d(1),
    ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10)).to(DEVICE)
    optimizer, forward = adam(model.parameters(), by_hand), compiled(model)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.float16, cache_enabled=not by_hand):
            loss = F.cross_entropy(forward(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    batches = [(rand(32, 3, 32, 32), randint(10, 32)) for _ in range(8)]
    return Program(step, batches, [model])


PROGRAMS = {
    "residual MLP": residual_mlp,
    "GPT, accumulation": gpt,
    "TD3": td3,
    "PPO": ppo,
    "DLRM": dlrm,
    "CNN, AMP": cnn_amp,
}


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


def randint(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, device=DEVICE)


class ByHand:
    """A step with `torch.cuda.graph`, as an engineer writes it: a graph for each of its flags."""

    def __init__(self, program: Program) -> None:
        self._graphs: dict[
            object, tuple[torch.cuda.CUDAGraph, list[torch.Tensor], torch.Tensor]
        ] = {}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for batch in program.batches[:SKIPPED]:
                program.step(*batch)  # these are real steps
        torch.cuda.current_stream().wait_stream(side)
        pool = torch.cuda.graph_pool_handle()
        for batch in program.batches[:2]:
            static = [x.clone() for x in batch if isinstance(x, torch.Tensor)]
            if self._flag(batch) in self._graphs:
                continue
            given = iter(static)
            args = [next(given) if isinstance(x, torch.Tensor) else x for x in batch]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side, pool=pool):
                loss = program.step(*args)
            self._graphs[self._flag(batch)] = graph, static, loss.detach()

    @staticmethod
    def _flag(batch: Batch) -> object:
        return tuple(x for x in batch if not isinstance(x, torch.Tensor))

    def __call__(self, *batch: Any) -> torch.Tensor:
        graph, static, loss = self._graphs[self._flag(batch)]
        torch._foreach_copy_(static, [x for x in batch if isinstance(x, torch.Tensor)])
        graph.replay()
        return loss.clone()


def made(name: str, way: str) -> Program:
    """A program from its seed; the version by hand has a fused optimizer, and a compiled one compiled modules."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    mode = {"compile": "default", "reduce-overhead": "reduce-overhead"}.get(way)
    compiled = (lambda x: torch.compile(x, mode=mode)) if mode else (lambda x: x)
    program = PROGRAMS[name](way == "by hand", compiled)
    torch.manual_seed(1)
    return program


def losses_of(
    name: str, way: str
) -> tuple[list[float], Callable[..., torch.Tensor], Program, float]:
    """The losses of the first steps, and the step that is fast by then, with its setup in seconds."""
    program = made(name, way)
    step = program.step
    began, skipped = time.perf_counter(), 0
    if way == "graphdoctor":
        step = graphdoctor.capture(step)
    if way == "by hand":
        step, skipped = ByHand(program), SKIPPED
    found = []
    setup_s = time.perf_counter() - began
    for at in range(skipped, COMPARED):
        batch = program.batches[at % len(program.batches)]
        if way in ("compile", "reduce-overhead"):
            torch.compiler.cudagraph_mark_step_begin()
        began = time.perf_counter()
        found.append(step(*batch).clone())
        torch.cuda.synchronize()
        if at < 8:
            setup_s += time.perf_counter() - began
    return [loss.item() for loss in found], step, program, setup_s


def timed(steps: Sequence[tuple[Callable[..., Any], Program]]) -> list[list[float]]:
    """Microseconds for a step of each, block by block in turns."""
    found: list[list[float]] = [[] for _ in steps]
    for _ in range(BLOCKS):
        for place, (step, program) in enumerate(steps):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for at in range(STEPS):
                step(*program.batches[at % len(program.batches)])
            torch.cuda.synchronize()
            found[place].append((time.perf_counter() - began) / STEPS * 1e6)
    return found


def rows(name: str, ways: Sequence[str]) -> Iterator[dict[str, Any]]:
    expected, eager, program, _ = losses_of(name, "eager")
    again = losses_of(name, "eager")[0]
    own = max(abs(a - b) for a, b in zip(expected, again, strict=True))
    for way in ways:
        row: dict[str, Any] = {"program": name, "way": way, "eager_differs_by": own}
        try:
            found, step, other, setup_s = losses_of(name, way)
            pairs = zip(expected[-len(found) :], found, strict=True)
            row["losses_differ_by"] = max(abs(a - b) for a, b in pairs)
            row["largest_loss"] = max(map(abs, expected))
            slow, fast = timed([(eager, program), (step, other)])
            row |= {
                "eager_us": statistics.median(slow),
                "step_us": statistics.median(fast),
                "step_us_quartiles": statistics.quantiles(fast, n=4)[::2],
                "setup_s": setup_s,
            }
            if way == "graphdoctor":
                row |= {"explain": step.explain(), "replayed": step.replayed}
        except Exception:
            row["error"] = traceback.format_exc(limit=-3)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="names of programs, with commas")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    about = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    ways = ["graphdoctor", "by hand", *([] if options.no_compile else ["reduce-overhead"])]
    lines: list[dict[str, Any]] = [about]
    for name in options.only.split(";") if options.only else PROGRAMS:
        for row in rows(name, ways):
            lines.append(row)
            gain = (
                f"{row['eager_us'] / row['step_us']:6.2f}x"
                if "step_us" in row
                else row.get("error")
            )
            print(
                f"{name:18} {row['way']:16} {gain}",
                {k: v for k, v in row.items() if k != "error"},
                flush=True,
            )
            if options.json:
                options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
