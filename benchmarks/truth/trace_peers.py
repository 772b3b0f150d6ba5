"""What other tools answer about public traces, beside graphdoctor's answer and the truth of the idle time.

    python benchmarks/truth/trace_peers.py FOLDER OUT.jsonl --peers PYTHON [--ranks FOLDER]

FOLDER: traces of torch.profiler, plain or gzip, such as those in tests/ of AMD-AGI/TraceLens and of
facebookresearch/HolisticTraceAnalysis, and in tb_plugin/samples of pytorch/kineto. `--peers`: an interpreter
with TraceLens (of that repository), HolisticTraceAnalysis and torch-tb-profiler. Each tool reads each trace
in a fresh process, in turns. The truth is the union of all kernels, copies and fills of the device with the most of
them, of the file's own text, from the first start to the last end: a dozen lines, apart from graphdoctor's code.
`--ranks`: the traces of one run's ranks, on one clock and with the same collectives, such as dlrm_kineto in
et_replay/tests/inputs of facebookresearch/param. The truth is the start of each rank's collectives, in order.
"""

from __future__ import annotations

import argparse
import bisect
import gzip
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LONGEST_S = 150
# Names that say by themselves what the host does.
_KNOWN = {
    "data loading": r"DataLoader",
    "image preprocessing": r"scipy/ndimage|image_processing",
    "waits for the device": r"^(cuda|hip)(Stream|Device|Event)Synchronize",
    "graph launches": r"^(cuda|hip)GraphLaunch",
}
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
_FIRST = """
import json, sys, time
file = sys.argv[1]
answer = {}
"""
_LAST = """
answer["cpu_s"] = round(time.process_time() - began, 2)
print("\\nANSWER " + json.dumps(answer))
"""
TOOLS = {
    "graphdoctor": """
from pathlib import Path
from graphdoctor.trace import lanes, read_trace
from graphdoctor.trace.explain.trace_report import explain_trace
began = time.process_time()
trace = read_trace(Path(file))
report = explain_trace(trace, Path(file))
whole = lanes(trace)  # without cold starts, in which the device idles, too
answer["idle"] = (whole.idle_ns + whole.warm_up_ns) / (whole.span_ns + whole.warm_up_ns)
answer["says"] = f"{report.verdict}: {report.reason}"
""",
    "TraceLens": """
from TraceLens import TreePerfAnalyzer
began = time.process_time()
found = TreePerfAnalyzer.from_file(file).get_df_gpu_timeline().set_index("type")["percent"]
answer["idle"] = float(found["idle_time"]) / 100
answer["says"] = ""
""",
    "HolisticTraceAnalysis": """
import os, tempfile
from hta.trace_analysis import TraceAnalysis
folder = tempfile.mkdtemp()
path = folder + "/rank0.json"
os.symlink(os.path.abspath(file), path)
began = time.process_time()
found = TraceAnalysis(trace_files={0: path}, trace_dir=folder)
times = found.get_temporal_breakdown(visualize=False).iloc[0]
answer["idle"] = float(times["idle_time(us)"]) / float(times["kernel_time(us)"])
split = found.get_idle_time_breakdown(visualize=False)[0]
sums = split.groupby("idle_category")["idle_time"].sum()
answer["says"] = ", ".join(f"{name} {value / sums.sum():.0%}" for name, value in sums.items())
""",
    "torch-tb-profiler": """
import re, tempfile
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.run_generator import RunGenerator
began = time.process_time()
data = RunProfileData.parse("worker", 1, file, tempfile.mkdtemp())
data.process()
shown = RunGenerator("worker", 1, data).generate_run_profile()
rows = shown.overview["performance"][0]["children"]
answer["idle"] = None
parts = [f"{row['name']} {row['extra']:.0f}%" for row in rows if float(row["extra"]) >= 10]
advice = re.sub("<[^>]*>", "", " ".join(data.recommendations))
answer["says"] = ", ".join(parts) + (". " + advice if advice else "")
""",
}

RANKS = {
    "graphdoctor": """
from pathlib import Path
from graphdoctor.trace.explain.folder import explain_folder
from graphdoctor.trace.explain.trace_report import TraceOptions
began = time.process_time()
found = explain_folder(Path(file), TraceOptions(), lambda doing: None)
answer["says"] = found.ranks.problem or found.job.reason
""",
    "TraceLens": """
from pathlib import Path
from TraceLens import NcclAnalyser
began = time.process_time()
files = sorted(map(str, Path(file).iterdir()))
found = NcclAnalyser(files, len(files)).build_df_nccl_implicit_sync_cat()
skew = ", ".join(f"{one / 1e3:.3g}" for one in found["skew in start time"])
first = ", ".join(map(str, found["earliest arrival rank"]))
answer["says"] = f"skew in start time {skew} ms; earliest arrival rank {first}"
""",
    "HolisticTraceAnalysis": """
from hta.trace_analysis import TraceAnalysis
began = time.process_time()
found = TraceAnalysis(trace_dir=file).get_potential_stragglers()
answer["says"] = f"potential stragglers: ranks {', '.join(map(str, found))}"
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--ranks", type=Path)
    options = parser.parse_args()
    traces = sorted(path for path in options.folder.iterdir() if ".json" in path.name)
    with tempfile.TemporaryDirectory() as folder, options.out.open("w", encoding="utf-8") as out:
        for source in traces:
            plain = Path(folder) / "trace.json"
            content = source.read_bytes()
            plain.write_bytes(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
            row: dict[str, Any] = {"trace": source.name.partition(".")[0], **_truth(plain)}
            for tool, code in TOOLS.items():
                python = sys.executable if tool == "graphdoctor" else options.peers
                row[tool] = _ask(python, code, plain)
            out.write(json.dumps(row) + "\n")
            out.flush()
        if options.ranks:
            row = {"ranks": options.ranks.name, **_truth_of_ranks(options.ranks)}
            for tool, code in RANKS.items():
                python = sys.executable if tool == "graphdoctor" else options.peers
                row[tool] = _ask(python, code, options.ranks)
            out.write(json.dumps(row) + "\n")


def _ask(python: str, code: str, file: Path) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [python, "-c", _FIRST + code + _LAST, str(file)],
            capture_output=True, text=True, check=False, env=environment, timeout=_LONGEST_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"problem": f"stopped after {_LONGEST_S} s"}
    for line in done.stdout.splitlines():
        if line.startswith("ANSWER "):
            answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
            return answer
    errors = done.stderr.strip().splitlines()
    return {"problem": errors[-1][:120] if errors else "no output"}


def _truth(file: Path) -> dict[str, Any]:
    events = json.loads(file.read_bytes(), strict=False)
    events = events["traceEvents"] if isinstance(events, dict) else events
    work = [one for one in events if one.get("ph") == "X" and one.get("cat") in _DEVICE]
    device = Counter(str(one["pid"]) for one in work).most_common(1)[0][0]
    spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in work if str(one["pid"]) == device)
    gaps, reached = [], spans[0][0]
    for start, end in spans:
        if start > reached:
            gaps.append((reached, start))
        reached = max(reached, end)
    idle = sum(end - start for start, end in gaps)
    host = [one for one in events if one.get("ph") == "X" and one.get("cat") not in _DEVICE]
    return {
        "events": len(events),
        "idle": idle / (reached - spans[0][0]),
        "lies_in": {what: _share(gaps, host, pattern) for what, pattern in _KNOWN.items()},
    }


def _truth_of_ranks(folder: Path) -> dict[str, Any]:
    """How often each rank begins a collective last, and by how much in all, in us."""
    begins = []
    for file in sorted(folder.iterdir()):
        events = json.loads(file.read_bytes(), strict=False)["traceEvents"]
        work = [one for one in events if one.get("cat") == "kernel"]
        begins.append(sorted(one["ts"] for one in work if "nccl" in one["name"].lower()))
    last: dict[str, list[float]] = {}
    for starts in zip(*begins, strict=True):
        *_, second, latest = sorted(starts)
        last.setdefault(str(starts.index(latest)), []).append(latest - second)
    found = {rank: {"times": len(late), "us": sum(late)} for rank, late in sorted(last.items())}
    return {"collectives": len(begins[0]), "last": found}


def _share(gaps: list[tuple[float, float]], host: list[Any], pattern: str) -> float:
    """How much of the idle time lies in host spans of such names."""
    found = [one for one in host if re.search(pattern, str(one.get("name")))]
    inside, reached = 0.0, -math.inf
    edges = [start for start, _ in gaps]
    for start, end in sorted((one["ts"], one["ts"] + one["dur"]) for one in found):
        low = max(start, reached)
        place = max(0, bisect.bisect_right(edges, low) - 1)
        while place < len(gaps) and gaps[place][0] < end:
            inside += max(0.0, min(end, gaps[place][1]) - max(low, gaps[place][0]))
            place += 1
        reached = max(reached, end)
    return round(inside / (sum(end - start for start, end in gaps) or 1), 4)


if __name__ == "__main__":
    main()
