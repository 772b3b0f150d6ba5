"""Public architectures, small, with random weights -> what graphdoctor and CUDA say of each, as JSON lines.

python benchmarks/truth/accuracy.py --device emulated,raw --jobs 16 --budget-s 540 --out accuracy.jsonl

Lines are written as they come, so that a run that is ended keeps them; --resume goes on from them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import IO

import no_gpu  # isort: skip  # before torch
import case_processes
import numpy as np
import torch
from asking import DEVICES, TRACERS, asked
from case_processes import Emit, Line, forked
from zoo import FAMILIES, Built, Case, cases

import graphdoctor

MODES = ("inference", "training")
PACKAGES = ("transformers", "timm", "torchvision", "diffusers", "torch_geometric")
ON_A_GPU = ("raw", "cuda")
SAYING = ("verdict", "raw", "dynamo", "export")
ENDINGS = ("crash", "raised", "refused", "not_built", "no_loss")
Key = tuple[str, str, str, str]  # family, model, mode, device; "" where a line is for all


def examine(case: Case, emit: Emit, *, options: argparse.Namespace, done: set[Key]) -> None:
    """One line for each mode and device, each asked in a process of its own."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    begun = time.perf_counter()
    try:
        built = case.build()
    except Exception as error:
        emit({"not_built": f"{type(error).__name__}: {error}"[:300]})
        return
    line = {"parameters": built.parameters, "inputs": built.inputs}
    line["build_s"] = round(time.perf_counter() - begun, 2)
    for mode in options.modes:
        if mode == "training" and built.fresh_with_loss is None:
            emit({**line, "mode": mode, "no_loss": built.no_loss})
            continue
        for device in options.devices:
            is_export_of_training = device == "export" and mode == "training"
            if (case.family, case.model, mode, device) not in done and not is_export_of_training:
                _ask(built, {**line, "mode": mode, "device": device}, emit, options.limit_s)


def _ask(built: Built, line: Line, emit: Emit, limit_s: float) -> None:
    def work(emit: Emit) -> None:
        if line["device"] in ON_A_GPU:
            no_gpu.no_more()
        emit({**line, **asked(built, mode=line["mode"], device=line["device"])})

    if why := forked(work, emit, limit_s=limit_s):
        emit({**line, "crash": why})


def chosen(options: argparse.Namespace, done: set[Key]) -> list[Case]:
    found, missing = cases(options.families)
    for family, why in missing.items():
        print(f"{family}: left out: {why}", file=sys.stderr)
    wanted = set(options.only.split(",")) if options.only else None
    found = [each for each in found if wanted is None or each.model in wanted]
    found = [each for each in found if options.kind in ("", each.kind)]
    return [each for each in found if not _is_done(each, options, done)][: options.limit]


def _is_done(case: Case, options: argparse.Namespace, done: set[Key]) -> bool:
    """Whether every answer is there; a model that could not be built, or has no loss, is one answer."""
    of_case = {key[2:] for key in done if key[:2] == (case.family, case.model)}
    return ("", "") in of_case or all(
        (mode, device) in of_case or (mode, "") in of_case
        for mode in options.modes
        for device in options.devices
    )


def key_of(line: Line) -> Key:
    return (line["family"], line["model"], line.get("mode", ""), line.get("device", ""))


def earlier(path: Path | None) -> list[Line]:
    """The whole lines of a run that was cut short, perhaps while it wrote one."""
    found: list[Line] = []
    for text in path.read_text(encoding="utf-8").splitlines()[1:] if path else ():
        with suppress(ValueError):
            found.append(json.loads(text))
    return found


def state_of(line: Line) -> str:
    for key in (*SAYING, *ENDINGS):
        if key in line:
            return f"{line[key]}" if key in SAYING else f"{key}: {line[key][:110]}"
    return "?"


def ready(options: argparse.Namespace) -> None:
    """Imports what every process needs, and makes sure that a fork can start CUDA."""
    torch.set_num_threads(1)
    if "emulated" in options.devices:
        with tempfile.NamedTemporaryFile("r") as names:
            forked(lambda _: _names_after_an_analysis(names.name), print, limit_s=120)
            for name in names.read().split():
                try:
                    importlib.import_module(name)
                except Exception:
                    continue  # made at run time
    for name in TRACERS:
        if name in options.devices:
            importlib.import_module({"dynamo": "torch._dynamo", "export": "torch.export"}[name])
    if set(ON_A_GPU) & set(options.devices) and (why := forked(_start_cuda, print, limit_s=120)):
        raise SystemExit(f"CUDA does not start in a fork of this process ({why}); is there a GPU?")


def _start_cuda(_: Emit) -> None:
    no_gpu.no_more()
    torch.ones(1, device="cuda").sum().item()


def _names_after_an_analysis(path: str) -> None:
    graphdoctor.analyze(torch.nn.Linear(2, 2), torch.ones(1, 2), device="emulated", strategies=())
    Path(path).write_text("\n".join(name for name in sys.modules if name != "__main__"))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("accuracy.jsonl"))
    parser.add_argument(
        "--resume", type=Path, help="lines of a run that was cut short; they are kept"
    )
    parser.add_argument("--family", default=",".join(FAMILIES), help="some of these, with commas")
    parser.add_argument("--only", default="", help="names of models, with commas")
    parser.add_argument("--kind", default="")
    parser.add_argument("--mode", choices=("", *MODES), default="")
    parser.add_argument(
        "--device", default="emulated", help=f"of {', '.join(DEVICES)}, with commas"
    )
    parser.add_argument("--limit", type=int, default=10_000, help="how many models")
    parser.add_argument("--limit-s", type=float, default=40, help="of one question")
    parser.add_argument("--budget-s", type=float, default=3600, help="of the whole run")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    options.families = options.family.split(",")
    options.devices = options.device.split(",")
    options.modes = (options.mode,) if options.mode else MODES
    return options


def main() -> None:
    deadline = time.monotonic()
    options = parsed()
    deadline += options.budget_s
    lines = earlier(options.resume)
    done = {key_of(each) for each in lines}
    work = chosen(options, done)
    ready(options)
    print(f"{len(work)} models, {deadline - time.monotonic():.0f} s left", flush=True)
    with options.out.open("w", encoding="utf-8") as out, tempfile.TemporaryDirectory() as folder:
        for line in (about(options.device), *lines):
            _write(line, out)
        found = case_processes.run(
            work,
            lambda case, emit: examine(case, emit, options=options, done=done),
            folder=Path(folder),
            jobs=options.jobs,
            limit_s=options.limit_s + 20,  # building, or a question that could not be ended
            deadline=deadline,
        )
        for line in found:
            _write(line, out)
            lines.append(line)
            show(line)
    summarize(lines)


def _write(line: Line, out: IO[str]) -> None:
    out.write(json.dumps(line) + "\n")
    out.flush()


def show(line: Line) -> None:
    rules = " ".join(f"{f['rule']}@{f['place']}" for f in line.get("findings", ()))
    name = f"{line['family'][:12]:12} {line['model'][:24]:24} {line.get('mode', '')[:5]:5}"
    where = f"{line.get('device', ''):8} {line.get('analyze_s', 0):5}"
    print(name, where, state_of(line), line.get("place", ""), rules, flush=True)


def summarize(lines: list[Line]) -> None:
    """How often what was said, for each family and mode."""
    steps: dict[tuple[str, str, str], dict[str, str]] = {}
    for each in lines:
        said = state_of(each).partition(":")[0]
        step = steps.setdefault((each["family"], each["model"], each.get("mode", "")), {})
        step[each.get("device", "")] = said
    counts: Counter[tuple[str, ...]] = Counter()
    for (family, _, mode), said in steps.items():
        counts[family, mode, " | ".join(f"{k} {v}".strip() for k, v in sorted(said.items()))] += 1
    for words, count in sorted(counts.items()):
        print(f"{count:5}", *(f"{word:13}" for word in words))


def about(device: str) -> dict[str, str]:
    """What the lines after this one were made with."""
    git = ["git", "-C", str(Path(graphdoctor.__path__[0])), "rev-parse", "--short", "HEAD"]
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": date.today().isoformat(),
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "device": device,
        **versions,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
