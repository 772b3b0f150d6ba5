"""torch's op_db, each entry in a process of its own on a GPU -> JSON lines: what a capture does with it.

    python benchmarks/opinfo_capture.py OUT.jsonl.gz --deadline-s 480
    python benchmarks/opinfo_capture.py OUT.jsonl.gz --device emulated --only add,multinomial

Modes run in this order, each for all entries: forward (does it wait, is it captured, does a replay on
fresh values agree), runtime (which runtime calls an eager call makes), backward (forward's questions,
with gradients). An output that exists is continued: entries that it holds in a mode are not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gzip
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from op_db import draw, dtype_of, entry_name, load_op_db, probe_gpu, spread

# Threads of a mathematics library would not survive the fork.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

MODES = ("forward", "runtime", "backward")
_SAMPLES = {"runtime": 2, "backward": 4}  # at most, in the modes that only add to the first


@dataclass(frozen=True)
class Task:
    """An entry to examine in one mode, from one of its chosen samples on."""

    index: int
    mode: str
    samples: int
    device: str
    capability: tuple[int, ...] | None
    start: int = 0


@dataclass(frozen=True)
class Running:
    process: Any
    task: Task
    part: Path
    until: float


def main() -> None:
    options = _options()
    started = time.monotonic()
    found = probe_gpu() if options.device == "cuda" else _emulated_versions()
    capability = tuple(found["capability"]) if options.device == "cuda" else None
    entries = load_op_db(capability)
    names = [entry_name(entry) for entry in entries]
    earlier = _lines_of(options.output)
    done = {(line["opinfo"], line["mode"]) for line in earlier if "opinfo" in line}
    modes = [
        mode for mode in options.modes.split(",") if options.device == "cuda" or mode != "runtime"
    ]
    wanted = set(options.only.split(",")) if options.only else None
    tasks = [
        Task(
            index,
            mode,
            min(options.samples, _SAMPLES.get(mode, options.samples)),
            options.device,
            capability,
        )
        for mode in modes
        for index, name in enumerate(names)
        if (name, mode) not in done
        and (wanted is None or name in wanted or entries[index].name in wanted)
    ]
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    header = {
        "run": {
            **found,
            "date": today,
            "python": platform.python_version(),
            "device": options.device,
        }
    }
    lines = [*earlier, header]
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(Path(folder), options, deadline=started + options.deadline_s)
        for line in pool.run(tasks):
            lines.append({"opinfo": names[line.pop("index")], **line})
            if len(lines) % 2000 == 0:
                _write(options.output, lines)
    _write(options.output, lines)
    left = f", {pool.left} tasks left" if pool.left else ""
    print(f"{len(lines)} lines in {time.monotonic() - started:.0f} s{left}", file=sys.stderr)


class Pool:
    """Runs tasks side by side, each in a process that forked, or was started, after the import."""

    def __init__(self, folder: Path, options: argparse.Namespace, *, deadline: float) -> None:
        self._folder = folder
        self._options = options
        self._deadline = deadline
        self._running: list[Running] = []
        self._count = 0
        self._context = multiprocessing.get_context("fork")
        self.left = 0

    def run(self, tasks: list[Task]) -> Iterator[dict[str, Any]]:
        if self._options.device == "cuda" and not self._can_fork():
            print(
                "CUDA refuses to start after a fork; importing anew in each process",
                file=sys.stderr,
            )
            self._context = multiprocessing.get_context("spawn")
        waiting = deque(tasks)
        while (waiting or self._running) and time.monotonic() < self._deadline:
            while waiting and len(self._running) < self._options.workers:
                self._start(waiting.popleft())
            for ended in self._ended():
                yield from self._results(ended, waiting)
            time.sleep(0.01)
        self.left = len(waiting) + len(self._running)
        for running in self._running:
            running.process.kill()
            running.process.join()
            yield from (line for line in _parsed(running.part) if "begin" not in line)

    def _can_fork(self) -> bool:
        process = self._context.Process(target=_touch_cuda)
        process.start()
        process.join(60)
        return process.exitcode == 0

    def _start(self, task: Task) -> None:
        self._count += 1
        part = self._folder / f"{self._count}.jsonl"
        process = self._context.Process(target=work, args=(task, part))
        process.start()
        self._running.append(Running(process, task, part, time.monotonic() + self._options.limit_s))

    def _ended(self) -> list[Running]:
        ended = []
        for running in self._running:
            if time.monotonic() > running.until:
                running.process.kill()
                running.process.join()
            if running.process.exitcode is not None:
                ended.append(running)
        for running in ended:
            self._running.remove(running)
        return ended

    def _results(self, ended: Running, waiting: deque[Task]) -> Iterator[dict[str, Any]]:
        """The lines of a process; one that died says in which sample, and the others go on later."""
        lines = _parsed(ended.part)
        task, code = ended.task, ended.process.exitcode
        begun = [line["begin"] for line in lines if "begin" in line]
        yield from (line for line in lines if "begin" not in line)
        if lines and lines[-1].get("stopped"):
            waiting.append(replace(task, start=begun[-1] + 1))
        elif code != 0:
            timeout = time.monotonic() > ended.until
            reason = (
                f"no end within {self._options.limit_s} s" if timeout else f"exit status {code}"
            )
            reason += _last_words(ended.part)
            yield {"index": task.index, "mode": task.mode, "crash": reason, "position": begun[-1:]}
            if begun and not timeout:
                waiting.append(replace(task, start=begun[-1] + 1))


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


def _touch_cuda() -> None:
    import torch

    torch.zeros(1, device="cuda").add_(1).item()
    os._exit(0)


def _parsed(part: Path) -> list[dict[str, Any]]:
    lines = part.read_text(encoding="utf-8").splitlines() if part.exists() else []
    parsed = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line of a process that was ended
            parsed.append(json.loads(line))
    return parsed


def _last_words(part: Path) -> str:
    log = Path(f"{part}.log")
    words = (
        log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if log.exists()
        else []
    )
    return f": {words[-1][:200]}" if words else ""


def _lines_of(output: Path) -> list[dict[str, Any]]:
    if not output.exists():
        return []
    opener = gzip.open if output.suffix == ".gz" else open
    with opener(output, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _write(output: Path, lines: list[dict[str, Any]]) -> None:
    """All lines, in a file that is put in place only when it is whole."""
    whole = output.with_name(f"partial-{output.name}")
    opener = gzip.open if output.suffix == ".gz" else open
    with opener(whole, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    whole.replace(output)


def _emulated_versions() -> dict[str, Any]:
    import torch

    return {"gpu": "emulated", "torch": torch.__version__, "cuda": None}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", choices=("cuda", "emulated"), default="cuda")
    parser.add_argument("--samples", type=int, default=12, help="of an entry, at most")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--deadline-s", type=float, default=480)
    parser.add_argument("--limit-s", type=float, default=60, help="of one process")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--only", default="", help="names of entries, separated by commas")
    return parser.parse_args()


if __name__ == "__main__":
    main()
