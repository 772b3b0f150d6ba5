"""Steps that nobody wrote a rule for: what graphdoctor says of each without a GPU, and what CUDA alone makes of it.

python benchmarks/truth/odd_steps.py --device emulated --json FILE
python benchmarks/truth/odd_steps.py --device raw --json FILE     # on a GPU; several processes
python benchmarks/truth/odd_steps.py --device cuda --json FILE    # what graphdoctor says there
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from odd import STEPS
from torch import nn


def diagnosed(name: str, *, device: str) -> dict[str, Any]:
    import graphdoctor

    def build() -> tuple[Any, ...]:
        step, inputs, *_ = STEPS[name]()
        return step, inputs

    try:
        report = graphdoctor.analyze(build, device=device, strategies=())
    except Exception as error:
        return {"step": name, "raised": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
    return {
        "step": name,
        "verdict": report.verdict,
        "reason": report.reason,
        "findings": [
            f"{each.rule} {each.location.line if each.location else ''}".strip()
            for each in report.findings
            if each.effect != "replay-is-slow"
        ],
        "limits": list(report.limits),
        "regions": [
            f"{each.scope} {each.status} {each.verification.status if each.verification else ''}".strip()
            for each in report.captures
        ],
    }


def on_raw(name: str) -> dict[str, Any]:
    from raw_capture import attempt

    step, inputs, *state = STEPS[name]()
    held = nn.Module()
    for place, each in enumerate(state):
        if isinstance(each, nn.Module):
            held.add_module(f"m{place}", each)
        else:
            held.register_buffer(f"b{place}", each)

    def fresh() -> dict[str, Any]:
        return {f"x{place}": again(value) for place, value in enumerate(inputs)}

    target = SimpleNamespace(
        state={"model": held}, inputs=fresh, step=lambda **given: step(*given.values())
    )
    found = attempt(target)
    return {"step": name, **{key: found.get(key) for key in ("raw", "place", "error")}}


def again(value: torch.Tensor) -> torch.Tensor:
    """Other values of the same kind."""
    if value.is_floating_point():
        return torch.randn_like(value)
    return value.flatten()[torch.randperm(value.numel(), device=value.device)].view_as(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("emulated", "cuda", "raw"), required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=8)
    args = parser.parse_args()
    ask = on_raw if args.device == "raw" else functools.partial(diagnosed, device=args.device)
    names = [name for name in STEPS if not args.only or name in args.only.split(",")]
    warnings.simplefilter("ignore")
    if args.device != "emulated":  # what one step does to its process, another must not see
        with ProcessPoolExecutor(
            args.jobs, mp_context=get_context("spawn"), max_tasks_per_child=None
        ) as pool:
            waiting = {name: pool.submit(ask, name) for name in names}
            lines = [result_of(name, each) for name, each in waiting.items()]
    else:
        lines = [ask(name) for name in names]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    if args.json:
        args.json.write_text(text)
    else:
        sys.stdout.write(text)


def result_of(name: str, waiting: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = waiting.result(timeout=100)
    except Exception as error:
        return {"step": name, "crash": f"{type(error).__name__}: {error}"[:200]}
    return found


if __name__ == "__main__":
    main()
