"""Steps of two ranks -> what emulated ranks say of each, and with `--device` what two GPUs make of it.

`python benchmarks/truth/ranks.py --json FILE` runs `graphdoctor analyze --ranks 2` on each scenario;
`--device` captures each with PyTorch alone, two processes on two GPUs (`ranks_capture.py`), several scenarios
at once. What one of the two decided is kept in the file where the other is run; `--page` writes the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = HERE.parent / "data" / "ranks.json"
PAGE = HERE.parents[1] / "docs" / "ranks_truth.md"
RANKS = 2
LAST_WORDS_S = 4.0
# From the worst: what one rank does is done to all.
WORST = ("does not run", "refused", "differs", "draws otherwise", "hangs", "captured")
RIGHT = ("captured", "draws otherwise")
# What was found of those that are not alike.
NOTES = {
    "ddp_of_bert": "transformers 5.17 gives its attention a mask of one number, with strides of 0, only while it is"
    " captured; CUDA's math kernel runs then, whose dropout draws other random numbers: a replay equals eager that"
    " takes that path. A remark names the line. GPT-2's mask fits the fused kernels, which draw alike."
    " transformers 5.23 gives no mask on either path, and the step is safe there.",
    "ddp_of_bert_with_eager_attention": "transformers 5.17 makes that mask of a Python number, on the way of a"
    " capture only.",
    "collective_on_a_stream_that_is_not_joined": "CUDA took a stream that is not joined where NCCL's collective"
    " is the last thing on it, and refused it with a kernel behind that.",
}
Row = dict[str, Any]


def main() -> None:
    args = arguments()
    known: Row = json.loads(args.json.read_text()) if args.json.exists() else {}
    if args.page:
        write_page(known)
        return
    which, decide = ("gpus", on_gpus) if args.device else ("emulated", emulated)
    sources, rows = scenarios(), known.get("steps", {})
    names = [name for name in sources if not args.only or name in args.only]
    known[which] = machine(is_device=args.device)
    with ThreadPoolExecutor(args.at_once) as pool:
        decided = pool.map(lambda name: decide(name, args.limit), names)
        for name, found in zip(names, decided, strict=True):
            rows.setdefault(name, {"source": sources[name]})[which] = found
            print(f"{name:44} {found}", flush=True)
            known["steps"] = {one: rows[one] for one in sources if one in rows}
            args.json.write_text(json.dumps(known, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, default=DATA)
    parser.add_argument("--device", action="store_true", help="capture on two GPUs")
    parser.add_argument("--only", action="append", default=[], help="one scenario")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each scenario")
    parser.add_argument("--page", action="store_true", help="write the table from the file")
    return parser.parse_args()


def scenarios() -> dict[str, str]:
    sys.path.insert(0, str(HERE))
    from ranks_scenarios import SCENARIOS

    return SCENARIOS


def machine(*, is_device: bool) -> Row:
    import torch

    known = {
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "python": platform.python_version(),
    }
    if is_device:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        known |= {"gpu": torch.cuda.get_device_name(), "gpus": RANKS, "nccl": nccl}
    return {**known, "date": datetime.now(UTC).date().isoformat()}


def emulated(name: str, limit_s: float) -> Row:
    """The verdict, its rules, and what became of the whole step as a graph."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        ran = subprocess.run(
            [
                sys.executable, "-m", "graphdoctor", "analyze", f"{HERE / 'ranks_scenarios.py'}:{name}",
                "--isolated", "--device", "emulated", "--ranks", str(RANKS),
                "--time-limit", str(limit_s), "--json", str(report),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not report.exists():
            return {"outcome": "no verdict", "why": ran.stderr.strip().split("\n")[0][:200]}
        said = json.loads(report.read_text())
    rules = sorted({found["rule"] for found in said["findings"] if found["rule"] < "GD3"})
    return {"outcome": outcome(said), "verdict": said["verdict"], "rules": rules}


def outcome(report: Row) -> str:
    """The same words as a capture on GPUs has."""
    if any(found["rule"] == "GD216" for found in report["findings"]):
        return "hangs"
    whole = next((each for each in report["captures"] if each["scope"] == "whole step"), None)
    if report["verdict"] == "unknown" or whole is None:
        return "unknown"
    if whole["status"] == "refused":
        return "refused"
    if report["verdict"] != "safe":
        return "differs"
    draws = any("drops other elements from the same seed" in said for said in report["limits"])
    return "draws otherwise" if draws else "captured"


def on_gpus(name: str, limit_s: float) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        started = [start(name, rank, folder) for rank in range(RANKS)]
        wait(started, Path(folder), limit_s)
        found = [stage_of(Path(folder, f"{rank}.json")) for rank in range(RANKS)]
    ranks = [each["stage"] for each in found]
    worst = min(ranks, key=lambda stage: WORST.index(stage.split(" in ")[0]))
    error = next((each["error"] for each in found if each["stage"] == worst), "")
    return {"outcome": worst.split(" in ")[0], "ranks": ranks, "why": error}


def start(name: str, rank: int, folder: str) -> subprocess.Popen[bytes]:
    """Ranks meet in a file: several scenarios run at once, and no two want one port."""
    return subprocess.Popen(
        [sys.executable, str(HERE / "ranks_capture.py"), name, folder],
        env={
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(20_000 + hash_of(name)), "NCCL_NVLS_ENABLE": "0",
        },
        stdout=subprocess.DEVNULL,
        stderr=open(f"{folder}/{rank}.txt", "wb"),
        start_new_session=True,
    )  # fmt: skip


def hash_of(name: str) -> int:
    return 7 * sorted(scenarios()).index(name)


def wait(started: list[subprocess.Popen[bytes]], folder: Path, limit_s: float) -> None:
    """Until all ended, or the limit; where one has failed, the others have a moment left."""
    ends_s = time.monotonic() + limit_s
    while any(one.poll() is None for one in started) and time.monotonic() < ends_s:
        time.sleep(0.1)
        if any(
            stage_of(path)["stage"] in ("refused", "does not run") for path in folder.glob("*.json")
        ):
            ends_s = min(ends_s, time.monotonic() + LAST_WORDS_S)
    for one in started:
        with suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()


def stage_of(path: Path) -> Row:
    if not path.exists():
        text = path.with_suffix(".txt")
        lines = text.read_text(errors="replace").strip().splitlines() if text.exists() else []
        return {"stage": "does not run", "error": lines[-1][:200] if lines else ""}
    return dict(json.loads(path.read_text()))


def write_page(data: Row) -> None:
    PAGE.write_text("\n".join([*page(data), ""]))


def page(data: Row) -> Iterator[str]:
    """The table, with what is false in it said first."""
    rows = {name: row for name, row in data["steps"].items() if {"gpus", "emulated"} <= {*row}}
    decided = {name: row for name, row in rows.items() if row["gpus"]["outcome"] != "does not run"}
    known = {
        name: row
        for name, row in decided.items()
        if row["emulated"]["outcome"] not in ("unknown", "no verdict")
    }
    alike = [name for name, row in known.items() if is_alike(row)]
    captured = {name: row["gpus"]["outcome"] in RIGHT for name, row in known.items()}
    safe = {name: row["emulated"]["verdict"] == "safe" for name, row in known.items()}
    false_safe = [name for name in known if safe[name] and not captured[name]]
    alarms = [name for name in known if captured[name] and not safe[name]]
    gpus, cpu = data["gpus"], data["emulated"]
    yield from (
        "# Emulated ranks compared with two GPUs",
        "",
        f"{len(rows)} steps of two ranks, each decided twice: by `graphdoctor analyze --ranks 2 --device emulated`",
        f"(torch {cpu['torch']}, transformers {cpu['transformers']}, {cpu['date']}), and by a capture with PyTorch"
        f" alone on {gpus['gpus']} {gpus['gpu']} (torch {gpus['torch']}, transformers {gpus['transformers']},",
        f"NCCL {gpus['nccl']}, {gpus['date']}), whose three replays on fresh inputs were compared with eager.",
        "`draws otherwise` is a replay that equals eager on the path of the capture, which draws other random"
        " numbers than eager does.",
        "",
        f"Of {len(known)} that both decided {len(alike)} are alike ({len(alike) / max(1, len(known)):.0%}):"
        f" falsely safe {_named(false_safe)}, false alarms {_named(alarms)}; not decided without a GPU"
        f" {_named([*{*decided} - {*known}])}.",
        "",
        "`python benchmarks/truth/ranks.py` runs the first, with `--device` the second, and with `--page` writes this",
        "page from `benchmarks/data/ranks.json`; the steps are in `benchmarks/truth/ranks_scenarios.py`.",
        "",
        "| step | from | emulated ranks | two GPUs |",
        "|---|---|---|---|",
    )
    for name, row in rows.items():
        said = " ".join([row["emulated"]["outcome"], *row["emulated"].get("rules", ())])
        mark = "" if is_alike(row) else " **≠**"
        yield f"| `{name}` | {row['source']} | {said} | {row['gpus']['outcome']}{mark} |"
    yield ""
    for name, note in NOTES.items():
        yield f"- `{name}`: {note}"


def is_alike(row: Row) -> bool:
    return bool(row["emulated"]["outcome"] == row["gpus"]["outcome"])


def _named(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


if __name__ == "__main__":
    main()
