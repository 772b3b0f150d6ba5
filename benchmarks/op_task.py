"""A task -> its entry's samples examined, as JSON lines; runs in a process of its own."""

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
    """An entry to examine in one mode, from one of its chosen samples on."""

    index: int
    mode: str
    samples: int
    device: str
    capability: tuple[int, ...] | None
    start: int = 0


def work(task: Task, part: Path) -> None:
    """In the child: examine the task's samples; leaves at once where a failure has spoiled CUDA."""
    log = os.open(f"{part}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    with part.open("w", encoding="utf-8") as file, contextlib.ExitStack() as stack:
        if task.device == "emulated":
            from graphdoctor.emulator import EmulatedDevice

            stack.enter_context(EmulatedDevice())
        for line in _examined(task):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
        os._exit(0)  # taking CUDA down in order costs more than the work


def _examined(task: Task) -> Iterator[dict[str, Any]]:
    import torch
    from op_calls import trace_waits
    from op_sample import Watching, examine, runtime_calls

    torch.set_num_threads(1)
    entry = load_op_db(task.capability)[task.index]
    backward = task.mode == "backward"
    base = {"index": task.index, "mode": task.mode}
    dtype = (
        dtype_of(entry, needs_grad=backward) if entry.supports_autograd or not backward else None
    )
    if dtype is None:
        yield {**base, "skipped": "no dtype for it on CUDA"}
        return
    base["dtype"] = str(dtype).removeprefix("torch.")
    try:
        samples = draw(entry, dtype, 1, needs_grad=backward)
        fresh = draw(entry, dtype, 2, needs_grad=backward)
    except Exception as error:
        yield {**base, "skipped": f"drawing its samples: {str(error)[:200]}"}
        return
    # Autograd's thread would wait for Python while it holds what the caller waits for.
    watching = Watching(torch.cuda.Stream(), [] if backward else trace_waits())
    chosen = spread(len(samples), task.samples)
    for position in range(task.start, len(chosen)):
        yield {"begin": position}
        sample = chosen[position]
        if task.mode == "runtime":
            yield {**base, "sample": sample, **runtime_calls(samples[sample], watching)}
            continue
        other = fresh[sample] if len(fresh) == len(samples) else None
        found = examine(samples[sample], other, watching, backward=backward)
        yield {**base, "sample": sample, **found}
        if found.get("captures") is False and position + 1 < len(chosen):
            yield {"begin": position, "stopped": True}
            return


def touch_cuda() -> None:
    import torch

    torch.zeros(1, device="cuda").add_(1).item()
    os._exit(0)
