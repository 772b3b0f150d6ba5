"""Time and memory of reading and explaining a trace, beside other tools and the parsers' limits.

    python benchmarks/speed/trace.py [--events 1000000] [--peers PYTHON]

Makes the trace itself. Every row is one fresh process; CPU time is what a busy machine does not
blur. `--peers`: an interpreter in which HolisticTraceAnalysis (or traceinsight), TraceLens (from
github.com/AMD-AGI/TraceLens: the package of that name in the registry is something else),
torch-tb-profiler and orjson are installed, as far as one likes; what is missing is said to be.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.regimes import RegimeTrace

_EVENTS_PER_KERNEL = 6
_STEPS = 20
_REPORT = """
import json, resource, time
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - began_cpu,
                  "peak_mb": used.ru_maxrss / 1024, "idle": idle}))
"""
_START = "import sys, time\nfile = sys.argv[1]\nidle = None\n"
_BEGIN = "began, began_cpu = time.perf_counter(), time.process_time()\n"

OURS = """
from pathlib import Path
from graphdoctor.trace import read_trace
from graphdoctor.trace.explain.trace_report import explain_trace
{begin}
idle = explain_trace(read_trace(Path(file)), Path(file)).idle_share
"""
TYPED = """
import gc, msgspec
from graphdoctor.trace.read.decode import Args, Event
class File(msgspec.Struct, gc=False):
    traceEvents: list[Event[Args]]
gc.disable()
{begin}
msgspec.json.decode(open(file, 'rb').read(), type=File)
"""
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
split = found.get_idle_time_breakdown(visualize=False)[0]
""",
    "TraceLens": """
from TraceLens import TreePerfAnalyzer
{begin}
found = TreePerfAnalyzer.from_file(file)
found.get_df_gpu_timeline()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--peers", default=sys.executable)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        plain, packed, idle = _make(Path(folder), options.events)
        size = plain.stat().st_size / 1e6
        print(f"{options.events:,} events, {size:.0f} MB; true idle share {idle:.3%}")
        print(f"  {'':34} {'wall s':>8} {'CPU s':>8} {'peak MB':>8}  idle share")
        _row("graphdoctor, plain", sys.executable, OURS, plain)
        _row("graphdoctor, gzip", sys.executable, OURS, packed)
        _row("msgspec, typed (parse only)", sys.executable, TYPED, plain)
        _row("gzip alone", sys.executable, "import gzip\n{begin}\ngzip.open(file).read()", packed)
        for name, code in PEERS.items():
            _row(name, options.peers, code, plain)


def _make(folder: Path, events: int) -> tuple[Path, Path, float]:
    plain, packed = folder / "trace.json", folder / "trace.json.gz"
    kernels = events // (_STEPS * _EVENTS_PER_KERNEL)
    with plain.open("w", encoding="utf-8") as file:
        truth = RegimeTrace("mixed", kernels=kernels, steps=_STEPS).write(file)
    # In blocks: what this process once held counts as the peak of those that it starts.
    with plain.open("rb") as whole, gzip.open(packed, "wb", compresslevel=5) as out:
        shutil.copyfileobj(whole, out, 1 << 20)
    return plain, packed, truth.idle / truth.span


def _row(name: str, python: str, code: str, file: Path) -> None:
    program = _START + code.format(begin=_BEGIN) + _REPORT
    done = subprocess.run(
        [python, "-c", program, str(file)], capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no output"
        print(f"  {name:34} not run: {reason[:90]}")
        return
    found = json.loads(lines[-1])
    idle = f"{found['idle']:.3%}" if found["idle"] is not None else ""
    print(
        f"  {name:34} {found['wall_s']:8.2f} {found['cpu_s']:8.2f} {found['peak_mb']:8.0f}  {idle}",
        flush=True,
    )


if __name__ == "__main__":
    main()
