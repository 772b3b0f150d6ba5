"""Predict the steps of `benchmarks/gpu/ranks.py` from their recordings, as graphdoctor does for several ranks.

`torchrun --nproc-per-node 2 benchmarks/truth/ranks_prediction.py --json FILE` records each on two ranks, on GPUs or
on the emulated device, and predicts it for `--gpu`. docs/ranks.md has the result beside what that script measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

import ranks

from graphdoctor.device.processes.launched import take_own_gpu
from graphdoctor.estimate import estimate
from graphdoctor.pipeline import open_setting, put_back, silent, study
from graphdoctor.record.place import place
from graphdoctor.target import from_object
from graphdoctor.values.options import AnalyzeOptions


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--only", default="", help="names of workloads, between commas")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name]
    options = AnalyzeOptions(iterations=2, gpu=args.gpu, strategies=())
    take_own_gpu()
    rows = []
    with open_setting(options, silent) as setting:
        for workload in ranks.WORKLOADS:
            if names and workload.name not in names:
                continue
            rows.append(predicted(workload, setting))
            if dist.get_rank() == 0:
                print(rows[-1], flush=True)
                args.json.write_text(json.dumps({"about": about(setting), "rows": rows}, indent=1))
    sys.stdout.flush()
    os._exit(0)


def predicted(workload: ranks.Workload, setting: Any) -> dict[str, Any]:
    target = from_object(lambda: ranks.target_of(workload.build))
    with put_back(target, setting.device.table.holds_values):
        studied = study(place(target, setting.device), setting)
    found = estimate(studied.recording.captured[-1], setting.profile)
    keys = ("eager_us", "graph_us", "speedup", "host_us", "device_busy_us", "launches", "notes")
    return {
        "name": workload.name,
        **{key: msgspec.to_builtins(getattr(found, key)) for key in keys},
    }


def about(setting: Any) -> dict[str, Any]:
    return {
        "gpu": setting.profile.title, "host": setting.profile.host, "ranks": dist.get_world_size(),
        "recorded_on": setting.device.kind, "torch": torch.__version__, "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


if __name__ == "__main__":
    main()
