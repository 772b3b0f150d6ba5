"""How long NCCL's collectives take between the GPUs of one host, alone and beside other work.

`python benchmarks/gpu/network.py --json FILE` starts a process a GPU. A row is one collective of one size: `graph_us`
is its time on the device, from a graph that holds many in a row; `eager_us` the time of one of many that are called
in a row, and `host_us` what one call takes the host. Times are the medians of rounds, each as long as on the slowest
rank. The last rows say what a collective of DDP's size and other work take alone, and on two streams at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from started_ranks import run_on_ranks

PORT = 29_543
TINY = os.environ.get("RANKS_TINY") == "1"  # to try it out where there is no GPU
ROUNDS, CALLS, REPLAYS, WARM_UPS = (2, 3, 1, 1) if TINY else (7, 20, 3, 3)
SIZES = tuple(256 * 4**power for power in range(3 if TINY else 11))  # bytes, up to 256 MiB
BUCKET = 2**12 if TINY else 25 * 2**20  # of DDP
Row = dict[str, Any]
Call = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    if "RANK" in os.environ:
        worker(args.json)
        return
    sys.exit(run_on_ranks(__file__, args.json, ranks=args.ranks, port=PORT))


def worker(path: Path) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rows = [row for size in SIZES for row in of_size(size)]
    beside = [beside_a_collective(name, run) for name, run in other_work().items()]
    if dist.get_rank() == 0:
        found = {"machine": machine(), "rows": rows, "beside": beside}
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(*rows, *beside, sep="\n")
    sys.stdout.flush()
    os._exit(0)  # NCCL may wait for what was captured: pytorch#115388


def machine() -> Row:
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if not TINY else ""
    return {
        "gpu": torch.cuda.get_device_name(), "gpus": dist.get_world_size(), "torch": torch.__version__,
        "nccl": nccl, "nvls": os.environ.get("NCCL_NVLS_ENABLE", ""), "date": datetime.now(UTC).date().isoformat(),
        "rounds": ROUNDS, "calls": CALLS,
    }  # fmt: skip


def of_size(size: int) -> list[Row]:
    """`bytes` is what one rank holds of the larger side: the whole vector, of which each rank has or gets a part."""
    ranks = dist.get_world_size()
    whole = torch.zeros(size // 4, device="cuda")
    part, other = torch.zeros(size // 4 // ranks, device="cuda"), torch.zeros_like(whole)
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
    }
    return [{"collective": name, "bytes": size, **times(call)} for name, call in calls.items()]


def times(call: Call) -> Row:
    for _ in range(WARM_UPS):
        call()
    graph = captured(call)
    called = [in_a_row(call, CALLS) for _ in range(ROUNDS)]
    eager, host = (slowest([one[which] for one in called]) for which in range(2))
    replayed = replays_us(graph)
    return {
        "graph_us": statistics.median(replayed),
        "graph_range": [min(replayed), max(replayed)],
        "eager_us": statistics.median(eager),
        "host_us": statistics.median(host),
    }


def other_work() -> dict[str, tuple[Call, int]]:
    """What the device may do meanwhile, and how many times: as long as a collective of a bucket or longer."""
    width, many = (64, 1) if TINY else (4096, 2)
    matrix = torch.randn(width, width, device="cuda", dtype=torch.bfloat16)
    vector = torch.randn(width * width * 4, device="cuda")
    return {"products": (lambda: matrix @ matrix, many), "additions": (lambda: vector.add_(1.0), 2)}


def beside_a_collective(name: str, work: tuple[Call, int]) -> Row:
    run, many = work
    bucket = torch.zeros(BUCKET // 4, device="cuda")
    side = torch.cuda.Stream()

    def reduced() -> None:
        dist.all_reduce(bucket)

    def worked() -> None:
        for _ in range(many):
            run()

    def both() -> None:
        now = torch.cuda.current_stream()
        side.wait_stream(now)
        with torch.cuda.stream(side):
            reduced()
        worked()
        now.wait_stream(side)

    found = {}
    for what, call in (("collective", reduced), ("work", worked), ("both", both)):
        call()
        found[f"{what}_us"] = statistics.median(replays_us(captured(call)))
    return {"beside": name, "bytes": BUCKET, **found}


def captured(call: Call) -> Call:
    """A graph of many calls in a row."""
    dist.barrier()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def replays_us(graph: Call) -> list[float]:
    """What one of the graph's calls takes, by rounds."""
    return slowest([in_a_row(graph, REPLAYS)[0] / CALLS for _ in range(ROUNDS)])


def in_a_row(call: Call, many: int) -> tuple[float, float]:
    """Wall and host time a call, in us."""
    dist.barrier()
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(many):
        call()
    called_s = time.perf_counter()
    torch.cuda.synchronize()
    return (time.perf_counter() - began_s) / many * 1e6, (called_s - began_s) / many * 1e6


def slowest(mine: list[float]) -> list[float]:
    """Each round's time on the rank that took longest."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return [max(times_) for times_ in zip(*found, strict=True)]


if __name__ == "__main__":
    main()
