"""torch's op_db, on a GPU -> JSON lines: what a capture does with each sample.

    python benchmarks/truth/opinfo_capture.py OUT.jsonl.gz --deadline-s 480
    python benchmarks/truth/opinfo_capture.py OUT.jsonl.gz --device emulated --only add,multinomial

Modes run in this order, each for all entries: forward (does it wait, is it captured, does a replay on
fresh values agree), runtime (which runtime calls an eager call makes), backward (forward's questions,
with gradients). Entries share a process until a capture fails in it, since that leaves CUDA's state in
doubt. An output that exists is continued.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from op_db import entry_name, load_op_db, probe_gpu
from op_processes import Pool
from op_task import Task

# Threads of a mathematics library would not survive the fork.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

MODES = ("forward", "runtime", "backward")
_PORTION = 8  # entries: starting CUDA takes longer than examining one
_SAMPLES = {"runtime": 2, "backward": 4}  # at most, in the modes that only add to the first


def main() -> None:
    options = _options()
    started = time.monotonic()
    found = probe_gpu() if options.device == "cuda" else _emulated_versions()
    capability = tuple(found["capability"]) if options.device == "cuda" else None
    entries = load_op_db(capability)
    names = [entry_name(entry) for entry in entries]
    earlier = _lines_of(options.output)
    tasks = _tasks(options, capability, entries, earlier)
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


def _tasks(
    options: argparse.Namespace,
    capability: tuple[int, ...] | None,
    entries: list[Any],
    earlier: list[dict[str, Any]],
) -> list[Task]:
    """What is left to do, in portions that share a process while nothing fails in it."""
    wanted = set(options.only.split(",")) if options.only else None
    tasks = []
    for mode in options.modes.split(","):
        if mode == "runtime" and options.device != "cuda":
            continue  # only a real runtime can be asked
        places = _places(earlier, mode)
        left = [
            (index, places.get(entry_name(entry), 0))
            for index, entry in enumerate(entries)
            if (wanted is None or {entry_name(entry), entry.name} & wanted)
            and places.get(entry_name(entry), 0) is not None
        ]
        samples = min(options.samples, _SAMPLES.get(mode, options.samples))
        tasks += [
            Task(tuple(left[start : start + _PORTION]), mode, samples, options.device, capability)
            for start in range(0, len(left), _PORTION)
        ]
    return tasks


def _places(earlier: list[dict[str, Any]], mode: str) -> dict[str, int | None]:
    """By entry: the position to go on from, where it ended in a failed capture; None: it is done."""
    places: dict[str, int | None] = {}
    counts: Counter[str] = Counter()
    for line in earlier:
        if line.get("mode") == mode:
            name = line["opinfo"]
            counts[name] += "sample" in line
            places[name] = counts[name] if line.get("captures") is False else None
    return places


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
    parser.add_argument("--limit-s", type=float, default=60, help="without a sample from a process")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--only", default="", help="names of entries, separated by commas")
    return parser.parse_args()


if __name__ == "__main__":
    main()
