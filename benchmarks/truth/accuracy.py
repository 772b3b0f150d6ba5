"""transformers' architectures, small, on the emulated device -> what graphdoctor says of each, as JSON lines.

python benchmarks/truth/accuracy.py --out table.jsonl [--only bert,gpt2] [--kind text] [--limit 120]
"""

from __future__ import annotations

import argparse
import importlib
import json
import linecache
import multiprocessing
import os
import platform
import random
import subprocess
import time
import traceback
from datetime import date
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from dynamo_breaks import breaks
from export_refusals import exported
from hf_models import Architecture, Built, architectures, build
from raw_capture import attempt

import graphdoctor
from graphdoctor.values.errors import GraphDoctorError
from graphdoctor.values.report import Finding, Report

ASKING = {"raw": attempt, "dynamo": breaks, "export": exported}
SAYING = ("verdict", "raw", "dynamo", "export")
TRACERS = ("dynamo", "export")  # others' tools: on the CPU, and no word about memory or streams


def training(built: Built, place: str) -> SimpleNamespace:
    """Forward, backward and an SGD step in training mode, on the model's own loss."""
    model = built.model.train().to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(**inputs: Any) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    def fresh() -> dict[str, Any]:
        assert built.fresh_with_loss is not None
        drawn = built.fresh_with_loss().items()
        return {n: v.to(place) if isinstance(v, torch.Tensor) else v for n, v in drawn}

    return SimpleNamespace(step=step, inputs=fresh, state={"model": model, "optimizer": optimizer})


def examine(
    architecture: Architecture, line: dict[str, Any], emit: Any, *, device: str, mode: str
) -> None:
    """Emits one line for the forward pass and one for the training step, or for the mode asked for."""
    try:
        begun = time.perf_counter()
        built = build(architecture)
    except Exception as error:
        emit({**line, "not_built": f"{type(error).__name__}: {error}"[:300]})
        return
    line |= {"parameters": built.parameters, "inputs": built.inputs}
    line["build_s"] = round(time.perf_counter() - begun, 2)
    fresh = built.fresh

    def inputs() -> dict[str, Any]:
        return fresh()

    if mode != "training":
        emit(analyzed({**line, "mode": "inference"}, lambda: (built.model, inputs), device=device))
    if mode == "inference" or device == "export":
        return
    if built.fresh_with_loss is None:
        emit({**line, "mode": "training", "no_loss": built.no_loss})
        return
    place = "cpu" if device in TRACERS else "cuda"
    emit(analyzed({**line, "mode": "training"}, lambda: training(built, place), device=device))


def analyzed(line: dict[str, Any], target: Any, *, device: Any) -> dict[str, Any]:
    begun = time.perf_counter()
    try:
        if device in ASKING:
            line |= ASKING[device](target())
            return line | {"analyze_s": round(time.perf_counter() - begun, 2)}
        report = graphdoctor.analyze(target, device=device, strategies=())
    except GraphDoctorError as error:
        line["refused"] = f"{type(error).__name__}: {error}"[:600]
    except Exception as error:
        line["raised"] = f"{type(error).__name__}: {error}"[:400]
        line["trace"] = traceback.format_exc()[-3000:]
    else:
        line |= summary(report)
    line["analyze_s"] = round(time.perf_counter() - begun, 2)
    return line


def summary(report: Report) -> dict[str, Any]:
    whole = next((c for c in report.captures if c.scope == "whole step"), None)
    verification = whole.verification if whole else None
    return {
        "verdict": report.verdict,
        "reason": report.reason,
        "operators": report.operators,
        "findings": [described(finding) for finding in report.findings],
        "whole_step": whole.status if whole else None,
        "refusal": whole.reason if whole else "",
        "verified": verification.status if verification else None,
        "verified_why": verification.reason if verification else "",
        "differences": [f"{d.tensor}: {d.detail}" for d in verification.differences][:3]
        if verification
        else [],
        "limits": report.limits,
    }


def described(finding: Finding) -> dict[str, Any]:
    place = finding.location
    return {
        "rule": finding.rule,
        "place": f"{shortened(place.file)}:{place.line}" if place else "",
        "code": linecache.getline(place.file, place.line).strip() if place else "",
        "count": finding.count,
        "phase": finding.phase,
        "operator": finding.operator,
        "certainty": finding.certainty,
        "message": finding.message,
    }


def shortened(file: str) -> str:
    """A path from the package on, so that tables of two machines are alike."""
    _, found, rest = file.rpartition("site-packages/")
    return rest if found else Path(file).name


def child(architecture: Architecture, part: Path, device: str, mode: str) -> None:
    torch.set_num_threads(1)
    random.seed(0)
    torch.manual_seed(0)
    line = {"model": architecture.model_type, "class": architecture.class_name}
    line["kind"] = architecture.kind
    with part.open("w", encoding="utf-8") as file, open(os.devnull, "w") as quiet:
        os.dup2(quiet.fileno(), 1)
        os.dup2(quiet.fileno(), 2)

        def emit(found: dict[str, Any]) -> None:
            file.write(json.dumps(found) + "\n")
            file.flush()

        examine(architecture, line, emit, device=device, mode=mode)


def run(architecture: Architecture, options: argparse.Namespace) -> list[dict[str, Any]]:
    """In a process of its own: one that crashes or hangs costs one line."""
    if time.monotonic() > options.until:
        return []
    part = Path(f"{options.out}.{architecture.model_type}.part")
    part.write_text("")
    # A process that forked cannot be sure to start CUDA.
    start = "spawn" if options.device in ("cuda", "raw") else "fork"
    context = multiprocessing.get_context(start)
    process = context.Process(target=child, args=(architecture, part, options.device, options.mode))
    process.start()
    process.join(options.limit_s)
    ended = process.exitcode
    if ended is None:
        process.kill()
        process.join()
    text = part.read_text(encoding="utf-8").splitlines()
    part.unlink()
    lines = [json.loads(each) for each in text if each.endswith("}")]
    if ended != 0:
        why = f"no end within {options.limit_s:g} s" if ended is None else f"exit status {ended}"
        crash = {"model": architecture.model_type, "kind": architecture.kind, "crash": why}
        lines.append(crash | ({"mode": options.mode} if options.mode else {}))
    return lines


def chosen(options: argparse.Namespace) -> list[Architecture]:
    found = architectures()
    if options.only:
        wanted = options.only.split(",")
        found = [each for each in found if each.model_type in wanted]
    if options.kind:
        found = [each for each in found if each.kind == options.kind]
    there = asked_before(options)
    found = [each for each in found if each.model_type not in there]
    # Kinds take turns, so that a run that is cut short has seen all of them.
    places: dict[str, int] = {}
    order = []
    for each in found:
        order.append((places.setdefault(each.kind, 0), each))
        places[each.kind] += 1
    return [each for _, each in sorted(order, key=lambda pair: pair[0])][: options.limit]


def asked_before(options: argparse.Namespace) -> set[str]:
    """Model types that the file has lines of already, so that a run that was cut short goes on."""
    if not options.out.exists():
        return set()
    lines = options.out.read_text(encoding="utf-8").splitlines()[1:]
    found = [json.loads(each) for each in lines]
    wanted = {options.mode} if options.mode else {"inference", "training"}
    return {
        each["model"] for each in found if each.get("mode", options.mode or "inference") in wanted
    }


def state_of(line: dict[str, Any]) -> str:
    for key in (*SAYING, "crash", "raised", "refused", "not_built", "no_loss"):
        if key in line:
            return f"{line[key]}" if key in SAYING else f"{key}: {line[key][:110]}"
    return "?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("accuracy.jsonl"))
    parser.add_argument("--only", default="")
    parser.add_argument("--kind", default="")
    parser.add_argument("--mode", choices=("", "inference", "training"), default="")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--limit-s", type=float, default=60)
    parser.add_argument("--budget-s", type=float, default=3600)
    parser.add_argument("--device", choices=("emulated", "cuda", *ASKING), default="emulated")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.device == "emulated":  # imports what every process needs
        graphdoctor.analyze(torch.nn.Linear(2, 2), torch.ones(1, 2), device="emulated")
    if options.device in TRACERS:
        importlib.import_module("torch._dynamo")
        importlib.import_module("torch.export")
    options.until = time.monotonic() + options.budget_s
    with options.out.open("a", encoding="utf-8") as out, ThreadPool(options.workers) as pool:
        if out.tell() == 0:
            out.write(json.dumps(about(options.device)) + "\n")
        work = chosen(options)
        for lines in pool.imap_unordered(lambda each: run(each, options), work):
            for line in lines:
                out.write(json.dumps(line) + "\n")
                rules = " ".join(f"{f['rule']}@{f['place']}" for f in line.get("findings", ()))
                name = f"{line['model']:24} {line.get('mode', '')[:5]:6}"
                print(name, line.get("analyze_s", 0), state_of(line), rules, flush=True)
            out.flush()


def about(device: str) -> dict[str, str]:
    """What the lines after this one were made with."""
    git = ["git", "-C", str(Path(graphdoctor.__path__[0])), "rev-parse", "--short", "HEAD"]
    return {
        "date": date.today().isoformat(),
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
        "device": device,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
