"""Eager steps on a quiet machine whose host was calibrated -> benchmarks/data/eager_<gpu>_torch<version>.jsonl.

    python benchmarks/gpu/eager.py OUT.jsonl [--processes 8] [--budget-s 120] [--rounds 3] [--only PATTERN]

Eager's wall time hangs on the host, and is off by a half where anything else runs there. So every process first
builds its workloads and warms them up; when all are ready, one after the other is timed, and nothing else runs.
All are timed in several rounds, a row each: what differs between rounds was disturbed by another user of the
machine, who only ever makes a step take longer. The first line tells the machine and what `graphdoctor calibrate
--host` says of its host.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kernels import ROOT, about, cases, write

MEASURE_S = 0.15
CALLS = 3
BLOCK = 10  # calls in a row: a step may count them


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--budget-s", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="a pattern of workloads")
    parser.add_argument("--work", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        _work(args.work)
        return
    ends = time.monotonic() + args.budget_s
    write(args.out, about())
    chosen = [case for case in cases() if re.search(args.only, case)]
    shares = [chosen[place :: args.processes] for place in range(args.processes)]
    workers = [_worker(share) for share in shares if share]
    try:
        for worker in workers:  # each says so once it has built all it can
            _heard(worker)
        print(f"all are ready, {ends - time.monotonic():.0f} s are left", flush=True)
        for number in range(args.rounds):
            for worker, share in zip(workers, shares, strict=False):
                for turn, case in enumerate(share):
                    if time.monotonic() < ends:
                        row = {"case": case, "round": number, **_heard(worker, f"{turn}")}
                        write(args.out, row)
                        print(row, flush=True)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _worker(share: list[str]) -> subprocess.Popen[str]:
    command = (sys.executable, __file__, "unused", "--work", *share)
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _heard(worker: subprocess.Popen[str], told: str = "") -> dict[str, Any]:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        if told:
            worker.stdin.write(told + "\n")
            worker.stdin.flush()
        for line in worker.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
    except BrokenPipeError:
        pass
    return {"error": "the process ended"}


def _work(share: list[str]) -> None:
    sys.path[:0] = [str(ROOT)]
    from graphdoctor.measure.wall_clock import Blocks, measure
    from graphdoctor.pipeline.setting import open_setting, silent
    from graphdoctor.record.place import place
    from graphdoctor.target import resolve, snapshot
    from graphdoctor.values.options import AnalyzeOptions

    built: list[Any] = []
    with ExitStack() as stack:
        setting = stack.enter_context(open_setting(AnalyzeOptions(gpu="h200"), silent))
        for case in share:
            try:
                target = place(resolve(str(ROOT / case), mode=None, inputs=()), setting.device)
                inputs = target.fresh_inputs()

                def step(target: Any = target, inputs: Any = inputs) -> object:
                    return target.step(*inputs.args, **inputs.kwargs)

                for _ in range(CALLS):
                    step()
                built.append((step, snapshot(target.roots)))
            except Exception as error:
                built.append(f"{type(error).__name__}: {str(error)[:200]}")
        print(json.dumps({"ready": len(built)}), flush=True)
        for line in sys.stdin:
            found = built[int(line)]
            if isinstance(found, str):
                print(json.dumps({"error": found}), flush=True)
                continue
            step, start = found
            blocks = Blocks(most_calls=BLOCK, prepare=start.restore)
            timed = measure(step, step, budget_s=MEASURE_S, blocks=blocks)
            print(json.dumps({"eager_us": round(timed.eager_us, 1)}), flush=True)


if __name__ == "__main__":
    main()
