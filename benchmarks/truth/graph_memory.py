"""What a graph of the whole step holds, predicted and measured -> benchmarks/data/graph_memory.jsonl.

    python benchmarks/truth/graph_memory.py OUT.jsonl [--budget-s 60] [--only PATTERN]

On a GPU each workload is captured and its pool read; without one its recording on the emulated device
says what the pool would be. Lines are added to the file as they come; what it has already of this device is
not asked again, so that a run may be cut short. docs/prediction.md has both beside each other.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from msgspec import to_builtins
from recorded_steps import ROOT, recorded

from graphdoctor.estimate.gpus import load_profile
from graphdoctor.estimate.graph_memory import graph_memory
from graphdoctor.pipeline import open_setting, put_back, study
from graphdoctor.proof.stage import capture_and_verify
from graphdoctor.record.place import place
from graphdoctor.target import resolve
from graphdoctor.values.options import AnalyzeOptions
from graphdoctor.values.report import GraphMemory

CASES = tuple(
    f"benchmarks/gpu/workloads/{name}"
    for name in (
        "linear_dropout.py",
        "dlrm.py:inference",
        "learning.py:gan",
        "pictures.py:vit",
        "pictures.py:segmentation",
        "sequences.py:conformer",
        "decode.py:gpt2",
        "bert.py:inference",
    )
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget-s", type=float, default=600.0)
    parser.add_argument("--only", default="", help="a pattern of workloads")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "emulated"
    ends = time.monotonic() + args.budget_s
    done = _done(args.out, device)
    for case in CASES:
        if case in done or not re.search(args.only, case) or time.monotonic() > ends:
            continue
        found = _row(case, device)
        with args.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"case": case, "device": device, **found}) + "\n")
        print(case, found, flush=True)


def _done(path: Path, device: str) -> set[str]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = (row for row in map(json.loads, lines) if "error" not in row)
    return {row["case"] for row in rows if row["device"] == device}


def _row(case: str, device: str) -> dict[str, Any]:
    try:
        found = _measured(case) if device == "cuda" else _predicted(case)
    except Exception as error:  # the others are still to be measured
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    return {"memory": to_builtins(found)}


def _predicted(case: str) -> GraphMemory:
    with tempfile.TemporaryDirectory() as folder:
        step = recorded([case], Path(folder))[case]
    return graph_memory(step.iteration, load_profile("h200"))


def _measured(case: str) -> GraphMemory:
    options = AnalyzeOptions(device="cuda", gpu="h200", iterations=3)
    with open_setting(options, lambda doing: None) as setting:
        target = resolve(str(ROOT / case), mode=None, inputs=())
        with put_back(target):
            studied = study(place(target, setting.device), setting)
            captured = capture_and_verify(
                studied.session, studied.recording, studied.diagnosis, studied.plan
            )
            if captured.step is None:
                raise RuntimeError(captured.outcomes[0].reason)
            predicted = graph_memory(studied.recording.captured[-1], setting.profile)
            captured.release()
    return GraphMemory(
        predicted.inputs_bytes,
        predicted.outputs_bytes,
        predicted.intermediates_bytes,
        predicted.pool_bytes,
        predicted.workspace_bytes,
        captured.pool_bytes,
    )


if __name__ == "__main__":
    main()
