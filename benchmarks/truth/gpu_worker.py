"""Started by accuracy.py: imports the families, starts CUDA, and asks it about one model after the other.

python gpu_worker.py FAMILIES PART
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import torch
from gpu_workers import serve

MOST_BYTES = 12 << 30  # that failed captures may keep, of each worker
KNOWN: dict[tuple[str, str], Any] = {}


def start(families: list[str]) -> None:
    """CUDA first: what other packages load may be in its way."""
    torch.set_num_threads(1)
    torch.ones(1, device="cuda").sum().item()
    from zoo import cases

    found, _ = cases(families)
    KNOWN.update({(each.family, each.model): each for each in found})
    if why := why_spoilt():
        raise RuntimeError(f"a capture of one addition: {why}")


def answer(question: dict[str, Any]) -> tuple[dict[str, Any], str]:
    line = _answer(**question)
    return line, why_spoilt()


def _answer(*, model: str, family: str, mode: str, device: str) -> dict[str, Any]:
    from asking import asked, build

    built, line = build(KNOWN[family, model])
    if built is None:
        return line
    if mode == "training" and built.fresh_with_loss is None:
        return {**line, "mode": mode, "no_loss": built.no_loss}
    line |= {"mode": mode, "device": device}
    try:
        return {**line, **asked(built, mode=mode, device=device)}
    except Exception as error:
        return {**line, "raised": f"{type(error).__name__}: {error}"[:400]}


def why_spoilt() -> str:
    """Tidies up, then captures and replays: why the next question needs another process, or nothing."""
    try:
        gc.collect()
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.manual_seed(0)
        _capture_one_addition()
        reserved = torch.cuda.memory_reserved()
    except Exception as error:
        return f"{type(error).__name__}: {error}".split("\n")[0][:200]
    return f"{reserved >> 30} GiB are still reserved" if reserved > MOST_BYTES else ""


def _capture_one_addition() -> None:
    ones, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        more = ones + torch.rand(4, device="cuda")
    graph.replay()
    if not bool((more >= 1).all()) or not bool((torch.rand(4, device="cuda") < 1).all()):
        raise RuntimeError("its replay computed something else")


def main() -> None:
    families, part = sys.argv[1:]
    serve(Path(part), start=lambda: start(families.split(",")), answer=answer)
    os._exit(0)  # taking CUDA down in order costs more than the work


if __name__ == "__main__":
    main()
