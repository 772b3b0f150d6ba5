"""Everything that a GPU can confirm in one go -> one JSON line for each case, in the file given.

Runs each sample model, each rule's two examples and each small Hugging Face model on the current CUDA device,
every case in a process of its own, since a refused capture can leave a context unusable:

    python benchmarks/gpu/samples_and_rules.py OUT.jsonl [--jobs 8] [--deadline-s 400]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

DEVICE: Any = os.environ.get("GRAPHDOCTOR_CHECK_DEVICE", "cuda")  # "emulated" tries this script out
ROOT = Path(__file__).resolve().parents[2]
EXPECT = re.compile(r"^Expect(?:\[(?P<name>\w+)\])?:", re.MULTILINE)


def sample_specs() -> list[str]:
    """Each sample model and variant, as `graphdoctor analyze` takes it in the project's folder."""
    found = []
    for path in sorted((ROOT / "sample_models").glob("*.py")):
        for match in EXPECT.finditer(path.read_text(encoding="utf-8")):
            name = match["name"]
            found.append(f"{path.relative_to(ROOT)}" + (f":{name}" if name else ""))
    return found


def cases() -> list[str]:
    found = [f"sample:{spec}" for spec in sample_specs()]
    from graphdoctor.rules import ALL_RULES

    found += [f"rule:{rule.id}:{which}" for rule in ALL_RULES for which in ("bad", "good")]
    sys.path.insert(0, str(ROOT / "tests"))
    from models.huggingface import BUILDERS

    found += [
        f"huggingface:{name}:{mode}" for name in BUILDERS for mode in ("inference", "training")
    ]
    return found


def run_case(case: str) -> dict[str, object]:
    """One case, in this process."""
    kind, _, rest = case.partition(":")
    if kind == "rule":
        return run_rule(*rest.split(":"))
    if kind == "sample":
        return run_sample(rest)
    return run_huggingface(*rest.split(":"))


def run_sample(spec: str) -> dict[str, object]:
    from graphdoctor.pipeline import analyze_target
    from graphdoctor.values.options import AnalyzeOptions

    options = AnalyzeOptions(device=DEVICE, gpu="h200", strategies=())
    return summary(analyze_target(str(ROOT / spec), options, lambda doing: None))


def run_huggingface(name: str, mode: str) -> dict[str, object]:
    sys.path.insert(0, str(ROOT / "tests"))
    from models.huggingface import BUILDERS

    from graphdoctor.pipeline import analyze

    model, args, kwargs = BUILDERS[name]()
    if mode == "training":
        step = training_step(model.train().cuda(), list(kwargs))
        inputs = [value.cuda() for value in kwargs.values()]
        return summary(analyze(step, *inputs, device=DEVICE, gpu="h200"))
    return summary(analyze(model, *args, device=DEVICE, gpu="h200", **kwargs))


def training_step(model: Any, names: list[str]) -> Callable[..., object]:
    """Forward and backward; the loss is the model's own where it has one."""

    def step(*values: object) -> object:
        model.zero_grad(set_to_none=True)
        output = model(**dict(zip(names, values, strict=True)))
        loss = output.logits.square().mean() if output.loss is None else output.loss
        loss.backward()
        return loss.detach()

    return step


def run_rule(rule_id: str, which: str) -> dict[str, object]:
    """What the device does with an example: whether it captures, and whether its replays are right."""
    from graphdoctor.device.open import open_device
    from graphdoctor.estimate.gpus import load_profile
    from graphdoctor.graphs.cause import Refusal
    from graphdoctor.graphs.whole_step import capture_whole_step
    from graphdoctor.proof.verify import verify_whole_step
    from graphdoctor.record import prepare
    from graphdoctor.record.place import place
    from graphdoctor.rules import ALL_RULES
    from graphdoctor.target import from_object

    rule = next(rule for rule in ALL_RULES if rule.id == rule_id)
    with open_device(DEVICE, load_profile("h200")) as device:
        session = prepare(place(from_object(getattr(rule, which)), device), device, iterations=4)
        session.start.restore()
        made = capture_whole_step(session.target)
        found: dict[str, object] = {"effect": rule.effect}
        if isinstance(made, Refusal):
            return {**found, "captures": False, "reason": made.reason}
        verification = verify_whole_step(
            session.target, made, session.batches, exact=DEVICE == "emulated"
        )
        return {
            **found,
            "captures": True,
            "replay": verification.status,
            "reason": verification.reason,
        }


def summary(report: Any) -> dict[str, object]:
    import msgspec

    whole = msgspec.to_builtins(report)
    keep = (
        "verdict",
        "reason",
        "captures",
        "estimate",
        "measurement",
        "machine",
        "limits",
        "operators",
    )
    found = {key: whole[key] for key in keep}
    found["findings"] = [
        [f["rule"], (f["location"] or {}).get("line"), f["certainty"]] for f in whole["findings"]
    ]
    found["regions"] = [
        [r["name"], r["operators"], r["launches"], r["worthwhile"]] for r in whole["regions"]
    ]
    if found["estimate"] is not None:
        found["estimate"]["terms"] = []
    return found


def in_own_process(case: str) -> dict[str, object]:
    started = time.monotonic()
    command = [sys.executable, __file__, "--case", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired:
        return {"case": case, "error": "more than 150 s"}
    wall_s = round(time.monotonic() - started, 1)
    line = next((x for x in done.stdout.splitlines() if x.startswith("{")), None)
    if line is None:
        return {
            "case": case,
            "error": done.stderr[-1500:],
            "exit": done.returncode,
            "wall_s": wall_s,
        }
    return {"case": case, **json.loads(line), "wall_s": wall_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--case")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--deadline-s", type=float, default=400)
    parser.add_argument("--only", default="", help="cases that start with this")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(run_case(args.case)))
        return
    ends = time.monotonic() + args.deadline_s
    chosen = [case for case in cases() if case.startswith(args.only)]
    with args.out.open("w") as out, ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(
            lambda c: in_own_process(c) if time.monotonic() < ends else None, chosen
        ):
            if result is not None:
                out.write(json.dumps(result) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
