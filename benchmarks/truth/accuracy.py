"""Public architectures, small, with random weights -> what graphdoctor and CUDA say of each, as JSON lines.

python benchmarks/truth/accuracy.py --device emulated,raw --jobs 16 --budget-s 540 --out accuracy.jsonl

Lines are written as they come, so that a run that is ended keeps them; --resume goes on from them.
`--executor dask://host:8786` asks each model in a process on a worker of that cluster, which reaches this file by the
same path.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import IO

import no_gpu  # isort: skip  # before torch
import torch
from asking import DEVICES, TRACERS, asked, build
from case_processes import Emit, Forks, Line, forked
from gpu_workers import Question, Workers, places_of_workers, side_by_side
from zoo import FAMILIES, Built, Case, cases

import graphdoctor
from graphdoctor.trace.explain.folder import cluster

MODES = ("inference", "training")
PACKAGES = ("transformers", "timm", "torchvision", "diffusers", "torch_geometric")
ON_A_GPU = ("raw", "cuda")
SAYING = ("verdict", "raw", "dynamo", "export")
WORKER = [sys.executable, str(Path(__file__).with_name("gpu_worker.py"))]
ENDINGS = ("crash", "raised", "refused", "not_built", "no_loss")
Key = tuple[str, str, str, str]  # family, model, mode, device; "" where a line is for all


def examine(case: Case, emit: Emit, *, options: argparse.Namespace, done: set[Key]) -> None:
    """One line for each mode and device that needs no GPU, each asked in a process of its own."""
    built, line = build(case)
    if built is None:
        emit(line)
        return
    for mode in options.modes:
        if mode == "training" and built.fresh_with_loss is None:
            emit({**line, "mode": mode, "no_loss": built.no_loss})
            continue
        for device in options.on_cpu:
            is_export_of_training = device == "export" and mode == "training"
            if (case.family, case.model, mode, device) not in done and not is_export_of_training:
                _ask(built, {**line, "mode": mode, "device": device}, emit, options.limit_s)


def _ask(built: Built, line: Line, emit: Emit, limit_s: float) -> None:
    def work(emit: Emit) -> None:
        emit({**line, **asked(built, mode=line["mode"], device=line["device"])})

    if why := forked(work, emit, limit_s=limit_s):
        emit({**line, "crash": why})


def questions(case: Case, options: argparse.Namespace, done: set[Key]) -> list[Question]:
    """What a worker on the GPU is asked of a case."""
    return [
        Question(case, mode, device)
        for device in options.on_gpu
        for mode in options.modes
        if not _is_done(case, (mode,), (device,), done)
    ]


def chosen(options: argparse.Namespace, done: set[Key]) -> list[Case]:
    found, missing = cases(options.families)
    for family, why in missing.items():
        print(f"{family}: left out: {why}", file=sys.stderr)
    wanted = set(options.only.split(",")) if options.only else None
    found = [each for each in found if wanted is None or each.model in wanted]
    found = [each for each in found if options.kind in ("", each.kind)]
    modes, devices = options.modes, options.devices
    return [each for each in found if not _is_done(each, modes, devices, done)][: options.limit]


def _is_done(case: Case, modes: Sequence[str], devices: Sequence[str], done: set[Key]) -> bool:
    """Whether every answer is there; a model that could not be built, or has no loss, is one answer."""
    of_case = {key[2:] for key in done if key[:2] == (case.family, case.model)}
    return ("", "") in of_case or all(
        (mode, device) in of_case or (mode, "") in of_case for mode in modes for device in devices
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
    """Imports what every fork needs."""
    torch.set_num_threads(1)
    _count_no_devices()
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


def _count_no_devices() -> None:
    """A backward counts devices, which starts the driver, and a fork may crash there: torch keeps this count.

    torch.cuda.device_count() would say in every fork that CUDA cannot be started there.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10_cuda.so"
    if library.exists():
        ctypes.CDLL(str(library))["_ZN3c104cuda12device_countEv"]()


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
    parser.add_argument("--executor", default="", help="a cluster, such as dask://host:8786")
    options = parser.parse_args()
    options.families = options.family.split(",")
    options.devices = options.device.split(",")
    options.on_gpu = [each for each in options.devices if each in ON_A_GPU]
    options.on_cpu = [each for each in options.devices if each not in ON_A_GPU]
    options.modes = (options.mode,) if options.mode else MODES
    return options


def main() -> None:
    deadline = time.monotonic()
    options = parsed()
    deadline += options.budget_s
    lines = earlier(options.resume)
    done = {key_of(each) for each in lines}
    work = chosen(options, done)
    print(f"{len(work)} models, {deadline - time.monotonic():.0f} s left", flush=True)
    with options.out.open("w", encoding="utf-8") as out, tempfile.TemporaryDirectory() as folder:
        for line in (about(options.device), *lines):
            _write(line, out)
        for line in answers(work, options, done, folder=Path(folder), deadline=deadline):
            if key_of(line) not in done:  # forks and workers both say that a model is not built
                done.add(key_of(line))
                _write(line, out)
                lines.append(line)
                show(line)
    summarize(lines)


def answers(
    work: list[Case], options: argparse.Namespace, done: set[Key], *, folder: Path, deadline: float
) -> Iterator[Line]:
    """From forks without a GPU and workers with one, in the same order of the cases, or from a cluster."""
    if options.executor:
        yield from from_cluster(work, options)
        return
    limit_s = options.limit_s + 20  # building, or a question that could not be ended
    workers = Workers(
        [each for case in work for each in questions(case, options, done)],
        [*WORKER, options.family],
        folder=folder,
        limit_s=limit_s,
        environment=no_gpu.shown(),
    )
    forks = Forks(
        [each for each in work if not _is_done(each, options.modes, options.on_cpu, done)],
        lambda case, emit: examine(case, emit, options=options, done=done),
        folder=folder,
        limit_s=limit_s,
    )
    workers.start(places_of_workers(forks, workers, options.jobs))  # they import meanwhile
    ready(options)
    yield from side_by_side(forks, workers, jobs=options.jobs, deadline=deadline)


def from_cluster(work: list[Case], options: argparse.Namespace) -> Iterator[Line]:
    """A model's process ends its own questions at their limits, which an executor cannot do."""
    arguments = [
        "--device",
        options.device,
        "--mode",
        options.mode,
        "--limit-s",
        f"{options.limit_s:g}",
    ]
    with cluster(options.executor) as executor:
        futures = [executor.submit(on_worker, case.family, case.model, arguments) for case in work]
        for each in as_completed(futures):
            yield from each.result()


def on_worker(family: str, model: str, arguments: list[str]) -> list[Line]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "lines.jsonl")
        asking = [sys.executable, __file__, "--family", family, "--only", model, "--out", str(out)]
        subprocess.run([*asking, *arguments], check=True, stdout=subprocess.DEVNULL)
        return earlier(out)


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
