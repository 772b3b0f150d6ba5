"""benchmarks/data/trace_peers.jsonl -> docs/trace-peers.md: four tools' results on the same traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tables import Row, jsonl, table

ROOT = Path(__file__).parents[2]
DATA = ROOT / "benchmarks/data/trace_peers.jsonl"
PAGE = ROOT / "docs/trace-peers.md"
TOOLS = ("graphdoctor", "TraceLens", "HolisticTraceAnalysis", "torch-tb-profiler")
_NAMED = 0.05

_OPENING = """# Other tools compared with `graphdoctor trace`

What four tools report on the same public traces. Written by `benchmarks/pages/trace_peers.py` from what
`benchmarks/truth/trace_peers.py` recorded ({date}): each tool in a fresh process, in turns, once, on two
cores that much other work shared. TraceLens is commit {tracelens} of AMD-AGI/TraceLens,
HolisticTraceAnalysis {hta} with pandas 2, torch-tb-profiler {tb}. The traces are from the tests of
AMD-AGI/TraceLens and of facebookresearch/HolisticTraceAnalysis, and from pytorch/kineto's samples; those of
ranks from the tests of facebookresearch/param (a DLRM on eight V100s).

The truth of the idle time is computed from the file's own text, from the first start on the device to the
last end: the union of all kernels, copies and fills of the device with the most of them. graphdoctor's
figure here is over the same span, while its verdict is about the steps that count. *Host spans* are the shares of
the idle time in host spans whose names say what the host does. A tool's statement about the cause is compared
with these shares. Several spans may include the same moment. The text after the shares was judged by reading.
"""


def main() -> None:
    about, *rows = jsonl(DATA)
    traces = [row for row in rows if "trace" in row]
    lines = [_OPENING.format(**about)]
    lines += ["## Idle time", ""]
    lines += table(("trace", "events", "truth", *TOOLS), map(_idle, traces))
    lines += ["## CPU seconds, imports left out", ""]
    lines += table(("trace", *TOOLS), map(_cost, traces))
    lines += ["## Who names the cause", ""]
    for row in rows:
        lines += _answers(row) if "trace" in row else _ranks(row)
    PAGE.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _idle(row: Row) -> Iterator[str]:
    yield from (row["trace"], f"{row['events']:,}", f"{row['idle']:.1%}")
    for tool in TOOLS:
        idle = row[tool].get("idle")
        yield f"{idle:.1%}" if idle is not None else row[tool].get("problem", "says none")


def _cost(row: Row) -> Iterator[str]:
    yield row["trace"]
    for tool in TOOLS:
        yield f"{row[tool]['cpu_s']:.2f}" if "cpu_s" in row[tool] else "not run"


def _answers(row: Row) -> Iterator[str]:
    known = [f"{what} {share:.0%}" for what, share in row["lies_in"].items() if share >= _NAMED]
    spans = ", ".join(known) or "none of the known kinds"
    yield f"**{row['trace']}**: {row['idle']:.0%} idle; host spans: {spans}. {row['judged']}"
    yield ""
    for tool in TOOLS:
        found = row[tool]
        said = found.get("says") or found.get("problem") or "reports the idle share and no cause."
        yield f"- {tool}: {' '.join(said.split())}"
    yield ""


def _ranks(row: Row) -> Iterator[str]:
    last = (
        f"rank {rank} {late['times']} times, by {late['us'] / 1e3:.3g} ms in all"
        for rank, late in row["last"].items()
    )
    yield "## Which rank the others wait for"
    yield ""
    yield (
        f"**{row['ranks']}**: of {row['collectives']} collectives, last to begin is {'; '.join(last)}."
        f" {row['judged']}"
    )
    yield ""
    for tool in TOOLS:
        if tool in row:
            yield f"- {tool}: {row[tool].get('says') or row[tool].get('problem')}"
    yield ""


if __name__ == "__main__":
    main()
