"""A GPU that nothing was fitted to -> benchmarks/data/predictions_h100_torch2.11.json.

    python benchmarks/truth/other_gpu.py     then: make results

For each sample that benchmarks/gpu/samples_and_rules.py captured whole on an H100: the graph's time there, and what
`graphdoctor analyze --gpu h100` predicts for it without a GPU. All fitted figures are an H200's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks/data/samples_h100_torch2.11.jsonl"
OUT = ROOT / "benchmarks/data/predictions_h100_torch2.11.json"


def main() -> None:
    lines = map(json.loads, MEASURED.read_text(encoding="utf-8").splitlines())
    rows = [_row(line) for line in lines if line.get("measurement")]
    OUT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        low, mid, high = row["predicted_us"]
        print(f"{row['case']}: {mid:.0f} ({low:.0f} to {high:.0f}), {row['measured_us']:.0f} us")


def _row(line: dict[str, Any]) -> dict[str, Any]:
    case = line["case"].removeprefix("sample:")
    return {
        "case": case,
        "predicted_us": list(_predicted_us(case)),
        "measured_us": line["measurement"]["graph_us"],
    }


def _predicted_us(case: str) -> Iterator[float]:
    command = ["analyze", case, "--gpu", "h100", "--device", "emulated", "--strategies", "none"]
    ran = subprocess.run(
        [sys.executable, "-m", "graphdoctor", *command, "--json", "-"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    graph = json.loads(ran.stdout)["estimate"]["graph_us"]
    return (graph[end] for end in ("low", "mid", "high"))


if __name__ == "__main__":
    main()
