"""Training steps under DDP on two GPUs -> wall times of eager and of one graph, and how far the launches part.

`python benchmarks/gpu/ranks.py --json FILE` starts a process a GPU. A step is forward, backward with its
all-reduces, and the optimizer; blocks of eager steps and of replays take turns, ranks meet before each block, and
both end with a synchronization. Skew is how much later an all-reduce begins on one GPU than on the other, as the
profiler saw them in a run of its own; the clock is that of the one host.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from started_ranks import run_on_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS, WARM_UPS, BLOCKS, STEPS, PROFILED = 2, 15, 7, 20, 12
PORT = 29_541
DRIFT = 0.02  # of the loss: bfloat16 training may take other kernels in a graph
Row = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    name: str
    what: str
    build: Callable[[], tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]]


def resnet50() -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    images = torch.randn(
        BATCHES["resnet50"], 3, SIZES["resnet50"], SIZES["resnet50"], device="cuda"
    )
    labels = torch.randint(0, 1000, (len(images),), device="cuda")
    return convolutional(), lambda model: nn.functional.cross_entropy(model(images), labels)


def convolutional() -> nn.Module:
    if TINY:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1000)
        )
    try:
        from torchvision.models import resnet50
    except ImportError:
        import timm

        return timm.create_model("resnet50")
    return resnet50()


def bert() -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    import transformers as hf

    tokens = torch.randint(0, 1000, (BATCHES["bert"], SIZES["bert"]), device="cuda")
    config = hf.BertConfig() if not TINY else hf.BertConfig(num_hidden_layers=1, hidden_size=48)
    return hf.BertForMaskedLM(config), lambda model: model(input_ids=tokens, labels=tokens).loss


def gpt() -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    import transformers as hf

    tokens = torch.randint(0, 1000, (BATCHES["gpt"], SIZES["gpt"]), device="cuda")
    config = hf.GPT2Config() if not TINY else hf.GPT2Config(n_layer=1, n_embd=48)
    return hf.GPT2LMHeadModel(config), lambda model: model(input_ids=tokens, labels=tokens).loss


TINY = os.environ.get("RANKS_TINY") == "1"
BATCHES = {"resnet50": 2, "bert": 1, "gpt": 1} if TINY else {"resnet50": 32, "bert": 8, "gpt": 4}
SIZES = (
    {"resnet50": 32, "bert": 8, "gpt": 8} if TINY else {"resnet50": 224, "bert": 128, "gpt": 256}
)
WORKLOADS = (
    Workload("resnet50", "ResNet-50, 32 images of 224 x 224 a GPU", resnet50),
    Workload("bert", "BERT base, masked language model, 8 x 128 tokens a GPU", bert),
    Workload("gpt", "GPT-2 (124 M parameters), 4 x 256 tokens a GPU", gpt),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    if "RANK" in os.environ:
        worker(args.json)
        return
    sys.exit(run_on_ranks(__file__, args.json, ranks=RANKS, port=PORT))


def worker(path: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    rows = []
    for workload in WORKLOADS:
        found: list[Any] = [None] * RANKS
        dist.all_gather_object(found, measured(workload))
        rows.append(together(workload, found))
        if rank == 0:
            print(rows[-1], flush=True)
            path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    sys.stdout.flush()
    os._exit(0)  # NCCL may wait for what was captured: pytorch#115388


def machine() -> Row:
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "gpu": torch.cuda.get_device_name(), "gpus": RANKS, "torch": torch.__version__, "nccl": nccl,
        "date": datetime.now(UTC).date().isoformat(), "blocks": BLOCKS, "steps_a_block": STEPS,
    }  # fmt: skip


def training(
    build: Callable[[], tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]], side: Any
) -> Callable[[], torch.Tensor]:
    torch.manual_seed(1)
    model, loss_of = build()
    with torch.cuda.stream(side):
        model = DistributedDataParallel(model.cuda(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, capturable=True, fused=not TINY)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        return loss

    return step


def target_of(build: Callable[[], tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]]) -> Any:
    """What `graphdoctor analyze benchmarks/gpu/ranks.py:ddp_of_bert --ranks 2` runs, and under torchrun."""
    if not dist.is_initialized():
        dist.init_process_group("nccl")
    return training(build, torch.cuda.Stream()), ()


def ddp_of_resnet50() -> Any:
    return target_of(resnet50)


def ddp_of_bert() -> Any:
    return target_of(bert)


def ddp_of_gpt() -> Any:
    return target_of(gpt)


def measured(workload: Workload) -> Row:
    """One rank's times: each block's microseconds a step, and when its all-reduces began."""
    side = torch.cuda.Stream()
    step = training(workload.build, side)

    def eager() -> torch.Tensor:
        with torch.cuda.stream(side):
            return step()

    for _ in range(WARM_UPS):
        eager()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    began_s = time.perf_counter()
    with torch.cuda.graph(graph, stream=side):
        loss = step()
    torch.cuda.synchronize()
    capture_s = time.perf_counter() - began_s
    runs = {"eager": eager, "graph": graph.replay}
    blocks: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(BLOCKS):
        for name, run in runs.items():
            blocks[name].append(block_us(run))
    last = float(eager().detach())
    graph.replay()
    begun = {name: collectives_us(run) for name, run in runs.items()}
    return {"blocks": blocks, "begun": begun, "capture_s": capture_s, "losses": [last, float(loss)]}


def block_us(run: Callable[[], object]) -> float:
    dist.barrier()
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(STEPS):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - began_s) / STEPS * 1e6


def collectives_us(run: Callable[[], object]) -> list[float]:
    """When each all-reduce kernel began, on the host's clock."""
    if TINY:
        return [0.0, 1.0]
    dist.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(PROFILED):
            run()
        torch.cuda.synchronize()
    events = profile.profiler.kineto_results.events()
    return sorted(e.start_ns() / 1e3 for e in events if "ncclDevKernel_AllReduce" in e.name())


def together(workload: Workload, ranks: list[Row]) -> Row:
    """A step is as slow as the slower rank; ratios are of blocks that ran one after the other."""
    times = {
        name: [max(one["blocks"][name][i] for one in ranks) for i in range(BLOCKS)]
        for name in ("eager", "graph")
    }
    ratios = [e / g for e, g in zip(times["eager"], times["graph"], strict=True)]
    return {
        "name": workload.name,
        "what": workload.what,
        "eager_us": statistics.median(times["eager"]),
        "graph_us": statistics.median(times["graph"]),
        "speedup": statistics.median(ratios),
        "speedup_range": [min(ratios), max(ratios)],
        "capture_s": max(one["capture_s"] for one in ranks),
        "skew": {name: skew([one["begun"][name] for one in ranks]) for name in ("eager", "graph")},
        "losses": [one["losses"] for one in ranks],
    }


def skew(begun: list[list[float]]) -> Row | None:
    """How much later one rank's collectives begin, in microseconds; None where ranks saw other numbers of them."""
    if len({len(one) for one in begun}) != 1 or not begun[0]:
        return None
    apart = sorted(max(at) - min(at) for at in zip(*begun, strict=True))
    return {
        "collectives": len(apart),
        "median_us": statistics.median(apart),
        "p95_us": apart[int(0.95 * (len(apart) - 1))],
        "max_us": apart[-1],
    }


if __name__ == "__main__":
    main()
