"""A task -> its entries' samples examined, as JSON lines; runs in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from op_db import draw, dtype_of, load_op_db, spread


@dataclass(frozen=True)
class Task:
    """Entries to examine in one mode, each from one of its chosen samples on: (index, position)."""

    entries: tuple[tuple[int, int], ...]
    mode: str
    samples: int
    device: str
    capability: tuple[int, ...] | None


def work(task: Task, part: Path) -> None:
    """In the child: examine the entries; leaves at once where a failed capture has spoiled CUDA."""
    log = os.open(f"{part}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    with part.open("w", encoding="utf-8") as file, contextlib.ExitStack() as stack:
        if task.device == "emulated":
            from graphdoctor.device.emulated import EmulatedDevice

            stack.enter_context(EmulatedDevice())
        for line in _of_entries(task):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
            if "stopped" in line:
                break
        os._exit(0)  # taking CUDA down in order costs more than the work


def _of_entries(task: Task) -> Iterator[dict[str, Any]]:
    import torch
    from op_calls import trace_waits
    from op_sample import Watching

    torch.set_num_threads(1)
    # Autograd's thread would wait for Python while it holds what the caller waits for.
    watching = Watching(torch.cuda.Stream(), [] if task.mode == "backward" else trace_waits())
    for place, (index, start) in enumerate(task.entries):
        base = {"index": index, "mode": task.mode}
        for line in _examined(task, base, start, watching):
            yield {"place": place, **line}


def _examined(
    task: Task, base: dict[str, Any], start: int, watching: Any
) -> Iterator[dict[str, Any]]:
    from op_sample import examine, runtime_calls

    entry = load_op_db(task.capability)[base["index"]]
    backward = task.mode == "backward"
    yield {"begin": start - 1}
    dtype = (
        dtype_of(entry, needs_grad=backward) if entry.supports_autograd or not backward else None
    )
    if dtype is None:
        yield {**base, "skipped": "no dtype for it on CUDA"}
        return
    base = {**base, "dtype": str(dtype).removeprefix("torch.")}
    try:
        samples = draw(entry, dtype, 1, needs_grad=backward)
        fresh = draw(entry, dtype, 2, needs_grad=backward)
    except Exception as error:
        yield {**base, "skipped": f"drawing its samples: {str(error)[:200]}"}
        return
    chosen = spread(len(samples), task.samples)
    for position in range(start, len(chosen)):
        yield {"begin": position}
        sample = chosen[position]
        if task.mode == "runtime":
            yield {**base, "sample": sample, **runtime_calls(samples[sample], watching)}
            continue
        other = fresh[sample] if len(fresh) == len(samples) else None
        found = examine(samples[sample], other, watching, backward=backward)
        yield {**base, "sample": sample, **found}
        if found.get("captures") is False:
            yield {"begin": position, "stopped": position + 1 < len(chosen)}
            return


def touch_cuda() -> None:
    import torch

    torch.zeros(1, device="cuda").add_(1).item()
    os._exit(0)
