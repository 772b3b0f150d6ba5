"""Damaged traces -> whether each is explained or refused in a sentence, and nothing worse.

    python benchmarks/truth/fuzz_trace.py [--cases 3000] [--seed 0] [TRACE ...]

Without TRACE it damages traces of its own. Anything but a page or a GraphDoctorError, a case of
more than 10 s, a figure that does not add up, or a control character on the page is a finding.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from graphdoctor.reporters import trace_page
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import written
from graphdoctor.trace import read_trace
from graphdoctor.trace.explain.trace_report import TraceOptions, explain_trace
from graphdoctor.values.errors import GraphDoctorError
from tests.support.regimes import REGIMES, RegimeTrace

_LONGEST_S = 10.0
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        "",
        "x",
        "\x1b[31m",
        "\ud800",
        [],
        {},
        [1],
        {"a": 1},
        -1,
        0,
        1,
        2**31,
        2**63,
        2**64,
    ),
    *(2**200, -(2**70), 1e300, -1e300, 1e-300, 0.5, 9e15, -5.0, "7", "NaN", "ProfilerStep#3"),
    *("kernel", "cuda_runtime", "cpu_op", "python_function", "cudaGraphLaunch", "Memcpy DtoH"),
)
_BYTES = (
    b"\x00",
    b"\x1f",
    b"\xff",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"NaN",
    b"-",
    b"1e999",
)
_KEYS = ("ph", "cat", "name", "ts", "dur", "pid", "tid", "args")
_ARGUMENTS = ("correlation", "device", "stream", "bytes", "graph id")

Mutation = Callable[[random.Random, bytes], bytes]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sources = [_content(path) for path in options.traces] or [_own(regime) for regime in REGIMES]
    results: Counter[str] = Counter()
    findings = 0
    for case in range(options.cases):
        chance = random.Random(options.seed * 1_000_003 + case)
        mutation = chance.choice(MUTATIONS)
        result = _try(mutation(chance, chance.choice(sources)), chance)
        results[f"{mutation.__name__.strip('_')}: {result.splitlines()[0]}"] += 1
        if result.startswith("FINDING"):
            findings += 1
            print(f"case {case}, {mutation.__name__}: {result}")
    for name, count in sorted(results.items()):
        print(f"{count:6}  {name}")
    print(f"{options.cases} cases, {findings} findings")
    sys.exit(findings > 0)


def _try(content: bytes, chance: random.Random) -> str:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_bytes(content)
        try:
            result = _explain(path, chance)
        except GraphDoctorError as error:
            result = "refused" if "\n" not in str(error) else f"FINDING several lines: {error}"
        except Exception:
            result = f"FINDING {traceback.format_exc(limit=-4)}"
    took = time.perf_counter() - began
    return result if took < _LONGEST_S else f"FINDING took {took:.1f} s"


def _explain(path: Path, chance: random.Random) -> str:
    trace = read_trace(path)
    report = explain_trace(trace, path)
    if chance.random() < 0.5 and report.device_busy_ns:
        # Most other times are refused as those of another step, which would end the case here.
        wall = (report.device_busy_ns + chance.random() * report.idle_ns) / 1e3
        options = TraceOptions(wall_us=wall / report.steps_counted, rows=chance.choice((1, 15)))
        report = explain_trace(trace, path, options)
    parts = (report.device_busy_ns, report.launch_bound_ns, report.sync_wait_ns)
    rest = (report.device_gap_ns, report.unattributed_ns)
    if sum((*parts, *rest)) != report.span_ns or min((*parts, *rest)) < 0:
        return f"FINDING sums: {parts} {rest} {report.span_ns}"
    page = trace_page.render(report, Look(show_all=True))
    if any(not (char.isprintable() or char == "\n") for char in page):
        return "FINDING control characters on the page"
    json.loads(written(report), parse_constant=_no_constant)
    return "explained"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} in the JSON")


def _content(path: Path) -> bytes:
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def _own(regime: Any) -> bytes:
    text = io.StringIO()
    RegimeTrace(regime, kernels=12, steps=4).write(text)
    return text.getvalue().encode()


def _flip(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 3, 30))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _insert(chance: random.Random, content: bytes) -> bytes:
    for _ in range(chance.choice((1, 4))):
        place = chance.randrange(len(content))
        content = content[:place] + chance.choice(_BYTES) + content[place:]
    return content


def _cut(chance: random.Random, content: bytes) -> bytes:
    return content[: chance.randrange(len(content))]


def _drop(chance: random.Random, content: bytes) -> bytes:
    low, high = sorted(chance.randrange(len(content)) for _ in range(2))
    return content[:low] + content[high:]


def _repeat(chance: random.Random, content: bytes) -> bytes:
    low, high = sorted(chance.randrange(len(content)) for _ in range(2))
    return content[:high] + content[low:]


def _packed(chance: random.Random, content: bytes) -> bytes:
    return chance.choice((_flip, _cut, _drop))(chance, gzip.compress(content))


def _values(chance: random.Random, content: bytes) -> bytes:
    """Other values, of any type, in the fields that are read."""
    document = json.loads(content)
    events = document["traceEvents"]
    for _ in range(chance.choice((1, 5, len(events)))):
        event = chance.choice(events)
        arguments = event.get("args")
        if chance.random() < 0.5 and isinstance(arguments, dict):
            arguments[chance.choice(_ARGUMENTS)] = deepcopy(chance.choice(_VALUES))
        else:
            event[chance.choice(_KEYS)] = deepcopy(chance.choice(_VALUES))
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _times(chance: random.Random, content: bytes) -> bytes:
    """Clock jumps, negative and huge durations, equal times, events out of order."""
    document = json.loads(content)
    events = document["traceEvents"]
    for event in chance.sample(events, chance.randrange(len(events))):
        key = chance.choice(("ts", "dur"))
        event[key] = chance.choice((-1, 0, 1e3, 1e9, 1e15, -1e9)) + chance.random() * event.get(
            key, 0
        )
    chance.shuffle(events)
    return json.dumps(document).encode()


def _correlations(chance: random.Random, content: bytes) -> bytes:
    """Shared, missing and swapped correlation ids."""
    document = json.loads(content)
    for event in document["traceEvents"]:
        arguments = event.get("args", {})
        if "correlation" in arguments and chance.random() < 0.4:
            arguments["correlation"] = chance.randrange(8)
        elif chance.random() < 0.1:
            arguments.pop("correlation", None)
    return json.dumps(document).encode()


def _kinds(chance: random.Random, content: bytes) -> bytes:
    """Events of another category, device, stream or thread."""
    document = json.loads(content)
    categories = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_driver", "cpu_op", "user_annotation")
    for event in document["traceEvents"]:
        if chance.random() < 0.2:
            event["cat"] = chance.choice(categories)
        if chance.random() < 0.2:
            event["tid"] = chance.randrange(5)
            event.setdefault("args", {})["device"] = chance.randrange(4)
    return json.dumps(document).encode()


def _names(chance: random.Random, content: bytes) -> bytes:
    """Names that mean something to the reader, at events where they mean nothing."""
    document = json.loads(content)
    names = ("cudaGraphLaunch", "cudaStreamSynchronize", "cudaMemcpyAsync", "ProfilerStep#1",
             "Memcpy DtoH", "Memcpy HtoD", "Command Buffer Full", "a.py(3): f", "\x00\x1b[2J\n")  # fmt: skip
    for event in document["traceEvents"]:
        if chance.random() < 0.3:
            event["name"] = chance.choice(names)
    return json.dumps(document).encode()


MUTATIONS: tuple[Mutation, ...] = (
    *(_flip, _insert, _cut, _drop, _repeat, _packed),
    *(_values, _times, _correlations, _kinds, _names),
)


if __name__ == "__main__":
    main()
