"""benchmarks/data/versions.jsonl -> docs/versions.md: which torch and Python were tried, and what they said.

python benchmarks/pages/versions.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tables import Row, jsonl, table

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "benchmarks/data/versions.jsonl"  # benchmarks/truth/matrix.py
PAGE = ROOT / "docs/versions.md"

OPENING = """# Versions

graphdoctor is made for Python 3.11 to 3.14 and torch 2.6 to 2.15, builds for the CPU and for CUDA, with a GPU and
without. What a newer torch can do is asked for where it is used, and done without where it is missing.

`make matrix` makes an environment for each version of torch and runs there what analyses, captures and proves:
the tests of the rooms record, device, diagnose, partition, proof, graphs, captured and target, and the verdict of
each sample model. The versions that the whole suite runs with on every change are in `constraints.txt`.
"""
READING = """
"Otherwise there" are tests whose expectation does not hold with that torch, each with its reason in the test:

- Up to torch 2.6 the hooks on saved tensors are not told, so a graphed module inside
  `torch.utils.checkpoint` is replayed, where later versions make it run eagerly.
- Before torch 2.11 a capture refuses more of the random generator's state than what was measured on a GPU, and
  some operators wait in other places. The emulated device does what that torch says.
- Up to torch 2.9 at least, Dynamo compiles nothing anew where a parameter is given other strides in the same memory
  (`weight.data = weight.data.t()`), which torch 2.13 does. `graphdoctor.Segments` leaves that to Dynamo: make it anew
  after such a change.
- Since torch 2.15, `x[i] = 1.0` fills, and copies nothing from the host: it is no hazard there, and no finding.

On a GPU, torch 2.11.0 with Python 3.12 was used for everything that these pages call measured.
"""


def row(each: Row) -> list[str]:
    build = f"CUDA {each['cuda']}" if each["cuda"] else "CPU"
    failed = each["failed"]
    return [
        each["torch"].partition("+")[0],
        build + (", with a GPU" if each["gpu"] else ", no GPU"),
        each["python"],
        each["transformers"],
        f"{each['passed']:,}",
        f"{len(failed)}",
        f"{each['otherwise_there']}",
        f"{each['skipped']}",
        each["date"],
    ]


def failures(rows: list[Row]) -> Iterator[str]:
    """A line for each test; its parameters follow."""
    for each in rows:
        found: dict[str, list[str]] = {}
        for name in each["failed"]:
            test, _, parameters = name.partition("[")
            found.setdefault(test, []).append(parameters.removesuffix("]"))
        for test, parameters in found.items():
            of = ": " + ", ".join(parameters) if any(parameters) else ""
            yield f"- torch {each['torch']}: `{test}`{of}"


def main() -> None:
    rows = sorted(
        jsonl(DATA), key=lambda each: [int(n) for n in each["torch"].split("+")[0].split(".")]
    )
    names = [
        "torch",
        "build",
        "Python",
        "transformers",
        "passed",
        "failed",
        "otherwise there",
        "skipped",
        "date",
    ]
    parts = [OPENING, "\n".join(table(names, [row(each) for each in rows])), READING]
    parts += [f"torch {each['torch']}: {each['note']}.\n" for each in rows if each.get("note")]
    if any(each["failed"] for each in rows):
        parts.append("What failed:\n\n" + "\n".join(failures(rows)) + "\n")
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
