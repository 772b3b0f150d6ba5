"""Time and memory of reading and explaining a trace, beside other tools and the parsers' limits.

    python benchmarks/speed/trace.py [TRACE ...] [--events 1000000] [--rounds 5] [--other-order] [--peers PYTHON]
                                     [--limit 180] [--json FILE]

Makes a trace itself, and reads the given ones, plain or gzip, beside it. Every measurement is one fresh process, and
the rows take turns, so that what else the machine does falls on all of them; a median is of the rounds. CPU time is
what a busy machine blurs least. A row that takes more than `--limit` s of it stops, says so, and has no more turns.
`--other-order`: the first event is metadata, and keys are sorted, as files have them that other writers merged.
`--peers`: an interpreter in which HolisticTraceAnalysis, TraceLens (from
github.com/AMD-AGI/TraceLens: the package of that name in the registry is something else),
torch-tb-profiler and orjson are installed, as far as one likes; what is missing is said to be.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.regimes import RegimeTrace

ROOT = Path(__file__).parents[2]
_EVENTS_PER_KERNEL = 6
_STEPS = 20
_LONGEST_S = 180
_MOST_SHARED = 20  # a busy machine may give a process this part of a core
_REPORT = """
import json, resource, time
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - began_cpu,
                  "peak_mb": used.ru_maxrss / 1024, "idle": idle}))
"""
_START = """
import resource, sys, time
file, limit_s = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
idle = None
"""
_BEGIN = "began, began_cpu = time.perf_counter(), time.process_time()\n"

OURS = """
from pathlib import Path
from graphdoctor.trace import read_trace
from graphdoctor.trace.explain.trace_report import explain_trace
{begin}
idle = explain_trace(read_trace(Path(file)), Path(file)).idle_share
"""
# The fields that an explanation reads, of whatever event: what a single pass of msgspec takes for them.
TYPED = """
import gc, msgspec
from typing import Any
from msgspec import Struct, field
class Args(Struct, gc=False):
    correlation: int | None = -1
    device: int | str | None = None
    stream: int | str | None = None
    nbytes: int | float | str | None = field(default=None, name="bytes")
    graph: int | str | None = field(default=None, name="graph id")
    collective: Any = field(default=None, name="Collective name")
    elements: Any = field(default=None, name="In msg nelems")
    elements_out: Any = field(default=None, name="Out msg nelems")
    dtype: Any = None
    group: Any = field(default=None, name="Process Group Name")
    group_ranks: Any = field(default=None, name="Process Group Ranks")
    block: Any = field(default=None, name="Bytes")
    allocated: Any = field(default=None, name="Total Allocated")
    reserved: Any = field(default=None, name="Total Reserved")
    memory_kind: Any = field(default=None, name="Device Type")
    memory_device: Any = field(default=None, name="Device Id")
class Event(Struct, gc=False):
    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    ts: int | float = 0
    dur: int | float = 0
    pid: int | str | None = 0
    tid: int | str | None = 0
    args: Args | None = None
class File(Struct, gc=False):
    traceEvents: list[Event]
gc.disable()
{begin}
msgspec.json.decode(open(file, 'rb').read(), type=File)
"""
_TYPED_ROW = "msgspec, typed (parse only)"
PEERS = {
    "json.loads (parse only)": "import json\n{begin}\njson.loads(open(file, 'rb').read())",
    "orjson.loads (parse only)": "import orjson\n{begin}\norjson.loads(open(file, 'rb').read())",
    "msgspec, untyped (parse only)": (
        "import msgspec\n{begin}\nmsgspec.json.decode(open(file, 'rb').read())"
    ),
    "HolisticTraceAnalysis": """
import logging, os, pathlib, tempfile
from hta.trace_analysis import TraceAnalysis
folder = tempfile.mkdtemp()
os.symlink(os.path.abspath(file), folder + "/rank0.json")
{begin}
found = TraceAnalysis(trace_files={{0: folder + "/rank0.json"}}, trace_dir=folder)
times = found.get_temporal_breakdown(visualize=False).iloc[0]
idle = float(times["idle_time(us)"]) / float(times["kernel_time(us)"])
found.get_idle_time_breakdown(visualize=False)
""",
    "TraceLens": """
from TraceLens import TreePerfAnalyzer
{begin}
found = TreePerfAnalyzer.from_file(file)
timeline = found.get_df_gpu_timeline().set_index("type")["percent"]
idle = float(timeline["idle_time"]) / 100
""",
    "torch-tb-profiler": """
import tempfile
from torch_tb_profiler.profiler.loader import RunLoader
from torch_tb_profiler.run import RunProfile
from torch_tb_profiler.profiler.data import RunProfileData
{begin}
data = RunProfileData.parse("worker", 1, file, tempfile.mkdtemp())
data.process()
""",
}


@dataclass
class Row:
    """One tool and one file, and what each round of it took; `problem` where it could not run."""

    name: str
    python: str
    code: str
    file: Path
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)
    idle: float | None = None
    problem: str = ""

    def run(self, limit_s: int) -> None:
        program = _START + self.code.format(begin=_BEGIN) + _REPORT
        try:
            done = subprocess.run(
                [self.python, "-c", program, str(self.file), str(limit_s)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                timeout=limit_s * _MOST_SHARED,
            )
        except subprocess.TimeoutExpired:
            self.problem = f"did not end within {limit_s * _MOST_SHARED} s"
            return
        if done.returncode == -signal.SIGXCPU:
            self.problem = f"did not end within {limit_s} s of CPU time"
            return
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            errors = done.stderr.strip().splitlines()
            self.problem = errors[-1][:90] if errors else "no output"
            return
        found = json.loads(lines[-1])
        for name in ("wall_s", "cpu_s", "peak_mb"):
            getattr(self, name).append(found[name])
        self.idle = found["idle"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other-order", action="store_true")
    parser.add_argument("--peers")
    parser.add_argument("--limit", type=int, default=_LONGEST_S)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        plain, packed, idle = _make(Path(folder), options.events, options.other_order)
        size = plain.stat().st_size
        print(f"{options.events:,} events, {size / 1e6:.0f} MB; true idle share {idle:.3%}")
        rows = [
            *_rows(plain, options.peers),
            Row("graphdoctor, gzip", sys.executable, OURS, packed),
            Row(
                "gzip alone", sys.executable, "import gzip\n{begin}\ngzip.open(file).read()", packed
            ),
        ]
        _measure(rows, options.rounds, options.limit)
        about = {"events": options.events, "bytes": size, "idle": idle}
        measured.append({**about, "other_order": options.other_order, "tools": _tools(rows)})
        for trace in options.traces:
            plain = _unpacked(trace, Path(folder) / "given.json")
            size = plain.stat().st_size
            print(f"{trace.name}, {size / 1e6:.0f} MB")
            rows = _rows(plain, options.peers)
            _measure(rows, options.rounds, options.limit)
            measured.append({"trace": trace.name, "bytes": size, "tools": _tools(rows)})
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


def _rows(file: Path, peers: str | None) -> list[Row]:
    rows = [
        Row("graphdoctor, plain", sys.executable, OURS, file),
        Row(_TYPED_ROW, sys.executable, TYPED, file),
    ]
    return rows + ([Row(name, peers, code, file) for name, code in PEERS.items()] if peers else [])


def _measure(rows: list[Row], rounds: int, limit_s: int) -> None:
    for _ in range(rounds):
        for row in rows:
            if not row.problem:
                row.run(limit_s)
    _print(rows)


def _unpacked(trace: Path, target: Path) -> Path:
    """A plain copy: not every tool reads gzip by the name that it has here."""
    with trace.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    with gzip.open(trace) if is_packed else trace.open("rb") as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
    return target


def _print(rows: list[Row]) -> None:
    typed = next(row for row in rows if row.name == _TYPED_ROW)
    print(
        f"  {'':30} {'CPU s':>8} {'least':>8} {'wall s':>8} {'peak MB':>8} {'x typed':>8}  idle share"
    )
    for row in rows:
        if row.problem:
            print(f"  {row.name:30} not run: {row.problem}")
            continue
        # Each round beside the typed parse of the same round.
        ratios = [own / other for own, other in zip(row.cpu_s, typed.cpu_s, strict=False)]
        ratio = f"{median(ratios):8.2f}" if ratios else " " * 8
        idle = f"{row.idle:.3%}" if row.idle is not None else ""
        print(
            f"  {row.name:30} {median(row.cpu_s):8.2f} {min(row.cpu_s):8.2f} {median(row.wall_s):8.2f}"
            f" {median(row.peak_mb):8.0f} {ratio}  {idle}"
        )


def _tools(rows: list[Row]) -> list[dict[str, Any]]:
    kept = ("name", "wall_s", "cpu_s", "peak_mb", "idle", "problem")
    return [{name: asdict(row)[name] for name in kept} for row in rows]


def _make(folder: Path, events: int, other_order: bool) -> tuple[Path, Path, float]:
    plain, packed = folder / "trace.json", folder / "trace.json.gz"
    kernels = events // (_STEPS * _EVENTS_PER_KERNEL)
    with plain.open("w", encoding="utf-8") as file:
        truth = RegimeTrace("mixed", kernels=kernels, steps=_STEPS).write(file)
    if other_order:
        plain = _reordered(plain, folder / "other.json")
    # In blocks: what this process once held counts as the peak of those that it starts.
    with plain.open("rb") as whole, gzip.open(packed, "wb", compresslevel=5) as out:
        shutil.copyfileobj(whole, out, 1 << 20)
    return plain, packed, truth.idle / truth.span


def _reordered(source: Path, target: Path) -> Path:
    """Metadata first, and the keys of every event sorted: "args" first, "cat" behind it."""
    first = {"args": {"name": "python"}, "name": "process_name", "ph": "M", "pid": 77, "tid": 0}
    with source.open(encoding="utf-8") as lines, target.open("w", encoding="utf-8") as out:
        for line in lines:
            text = line.strip().removesuffix(",")
            if not text.startswith('{"ph"'):
                out.write(line)
                if '"traceEvents"' in line:
                    out.write(f"  {json.dumps(first)},\n")
                continue
            event = json.loads(text)
            comma = "," if line.rstrip().endswith(",") else ""
            out.write(f"  {json.dumps(event, sort_keys=True)}{comma}\n")
    source.unlink()
    return target


if __name__ == "__main__":
    main()
