"""What `audit` and `audit --verify every=N` cost a decode step that is replayed -> lines, and JSON.

    python benchmarks/gpu/verify_cost.py [--layers 16] [--width 1024] [--every 100] [--blocks 20] [--json FILE]

Blocks of replays of one graph, each with a wait for the device at its end, timed by the wall clock, and on the
emulated device by the CPU time of the process: alone, audited, verified at every Nth,
and verified at each, which says what one verification takes. The first replay of a graph is part of the warm-up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice


class Decoder:
    """One token through layers with attention over a cache, in a graph."""

    def __init__(self, layers: int, width: int) -> None:
        torch.manual_seed(0)
        make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        self.weights = [[make(width, width) / width**0.5 for _ in range(6)] for _ in range(layers)]
        self.caches = [make(2, 8, 512, width // 8) for _ in range(layers)]
        self.token, self.position = make(8, width), torch.tensor([7], device="cuda")
        self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.step()

    def step(self) -> torch.Tensor:
        hidden = self.token
        for (query, key, value, back, up, down), cache in zip(
            self.weights, self.caches, strict=True
        ):
            normed = functional.rms_norm(hidden, hidden.shape[-1:])
            heads = [(normed @ weight).view(8, 1, -1) for weight in (query, key, value)]
            for part, new in zip(cache, heads[1:], strict=True):
                new = new[:1, :, : part.shape[-1]].expand(part.shape[0], 1, -1)
                part.index_copy_(1, self.position, new)
            keys, values = cache.unbind()
            seen = functional.scaled_dot_product_attention(
                heads[0].view(8, 8, 1, -1).transpose(0, 1).reshape(8, 8, -1), keys, values
            )
            hidden = hidden + seen.reshape(8, -1) @ back
            hidden = hidden + functional.silu(hidden @ up) @ down
        return hidden


def us_per_replay(graph: Any, replays: int, clock: Callable[[], float]) -> float:
    torch.cuda.synchronize()
    begun = clock()
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    return 1e6 * (clock() - begun) / replays


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--device", choices=("cuda", "emulated"), default="cuda")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with EmulatedDevice() if args.device == "emulated" else nullcontext(), torch.no_grad():
        clock = time.perf_counter if args.device == "cuda" else time.process_time
        found = measured(args.layers, args.width, args.every, args.blocks, clock)
    for name, value in found.items():
        print(f"{name}: {value}")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1))


def measured(
    layers: int, width: int, every: int, blocks: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Medians over blocks of `every` replays, of which one is verified; in the last mode over single replays."""
    modes: dict[str, tuple[Callable[[], AbstractContextManager[Any]], int]] = {
        "alone": (nullcontext, every),
        "audited": (graphdoctor.audit, every),
        "verified": (partial(graphdoctor.audit, verify=every), every),
        "each verified": (partial(graphdoctor.audit, verify=1), 1),
    }
    us: dict[str, float] = {}
    for name, (mode, replays) in modes.items():
        with mode() as audit:
            decoder = Decoder(layers, width)
            us_per_replay(decoder.graph, replays, clock)
            us[name] = statistics.median(
                us_per_replay(decoder.graph, replays, clock) for _ in range(blocks)
            )
        if name == "each verified":
            assert not audit.report().wrong_replays, audit.report().wrong_replays
    one = us["each verified"] - us["audited"]
    return {
        "device": torch.cuda.get_device_name(),
        "us per replay": us,
        "audit costs": us["audited"] / us["alone"] - 1,
        "audit with verify costs": us["verified"] / us["alone"] - 1,
        "one verification, in replays": one / us["alone"],
        "verify, from one verification": one / us["alone"] / every,
        "verified": repr(audit.report().verified),
    }


if __name__ == "__main__":
    main()
