"""benchmarks/data/versions.jsonl -> docs/versions.md: which torch and Python were tried, and what they said.

python benchmarks/pages/versions.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tables import Row, jsonl, table

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "benchmarks/data/versions.jsonl"  # benchmarks/truth/matrix.py
PAGE = ROOT / "docs/versions.md"
ROOMS = (
    "record",
    "device",
    "diagnose",
    "partition",
    "proof",
    "captured",
    "target",
    "graphs",
    "rules",
    "samples",
)
_HEAD = (
    "torch",
    "build",
    "Python",
    "transformers",
    "rooms",
    "passed",
    "failed",
    "otherwise there",
    "skipped",
    "date",
)

OPENING = """# Versions

graphdoctor is made for Python 3.11 to 3.14 and torch 2.6 to 2.15, builds for the CPU and for CUDA, with a GPU and
without. Features of a newer torch are checked where they are used, and left out where they are missing.

`make matrix` makes an environment for each version of torch and runs there what analyses, captures and proves:
the tests of the rooms record, device, diagnose, partition, proof, captured, target, graphs and rules, and the verdict
of each sample model (samples). The versions that the whole suite runs with on every change are in `constraints.txt`.
"""
READING = """
"Otherwise there" are tests whose expectation does not hold with that torch, each with its reason in the test:

- Up to torch 2.6 the hooks on saved tensors are not visible, so a graphed module inside
  `torch.utils.checkpoint` is replayed, where later versions make it run eagerly.
- Before torch 2.11 a capture refuses more of the random generator's state than what was measured on a GPU, and
  some operators wait in other places. The emulated device does what that torch says. Before 2.10 it refuses a seed,
  too, and GD110 is found instead of GD215.
- Since torch 2.15, `x[i] = 1.0` fills, and copies nothing from the host: it is no hazard there, and no finding. So does
  `x[i] = 0` with a tensor `i`: it runs `index_fill_`.

On a GPU, torch 2.11.0 with Python 3.12 was used for everything that these pages call measured.
"""


class Environment:
    """A torch and a Python, with the newest run of each room, or one of several together."""

    def __init__(self, line: Row) -> None:
        self.torch = str(line["torch"])
        self.python = str(line["python"])
        self.build = f"CUDA {line['cuda']}" if line["cuda"] else "CPU"
        self.build += ", with a GPU" if line["gpu"] else ", no GPU"
        self.transformers = str(line["transformers"])
        self.rooms: dict[str, Row] = {}

    @property
    def version(self) -> tuple[list[int], list[int]]:
        of_torch = self.torch.partition("+")[0]
        return [int(n) for n in of_torch.split(".")], [int(n) for n in self.python.split(".")]

    @property
    def row(self) -> list[object]:
        dates = sorted({room["date"] for room in self.rooms.values()})
        return [
            self.torch.partition("+")[0],
            self.build,
            self.python,
            self.transformers,
            self._run,
            f"{self._sum('passed'):,}",
            len(self.listed("failed")),
            self._sum("otherwise_there"),
            self._sum("skipped"),
            " to ".join(dict.fromkeys([dates[0], dates[-1]])),
        ]

    @property
    def _run(self) -> str:
        missing = [room for room in ROOMS if room not in self.rooms]
        if not missing:
            return "all"
        if together := self.rooms.keys() - set(ROOMS):
            return " and ".join(sorted(together))
        few = [room for room in ROOMS if room in self.rooms]
        return f"all but {', '.join(missing)}" if len(missing) < len(few) else ", ".join(few)

    def listed(self, what: str) -> list[str]:
        return [name for room in self.rooms.values() for name in room.get(what, ())]

    def _sum(self, what: str) -> int:
        return sum(room[what] for room in self.rooms.values())


def environments(lines: list[Row]) -> list[Environment]:
    found: dict[tuple[Any, ...], Environment] = {}
    for line in lines:
        one = Environment(line)
        known = found.setdefault((one.torch, one.python, one.build, one.transformers), one)
        # What was run together before is replaced by the first room that was run for itself.
        alone = {room: run for room, run in known.rooms.items() if room in ROOMS}
        known.rooms = {**alone, line["room"]: line}
    return sorted(found.values(), key=lambda one: one.version)


def listed(every: list[Environment], what: str) -> Iterator[str]:
    """A line for each test; its parameters follow."""
    for each in every:
        found: dict[str, list[str]] = {}
        for name in each.listed(what):
            test, _, parameters = name.partition("[")
            found.setdefault(test, []).append(parameters.removesuffix("]"))
        for test, parameters in found.items():
            of = ": " + ", ".join(parameters) if any(parameters) else ""
            yield f"- torch {each.torch}, Python {each.python}: `{test}`{of}"


def main() -> None:
    every = environments(jsonl(DATA))
    parts = [OPENING, "\n".join(table(_HEAD, [each.row for each in every])), READING]
    titles = {
        "failed": "What failed:",
        "mended": "What failed on that date and is mended since:",
        "passed_alone": "What failed with other tests and passed when run alone:",
    }
    for what, title in titles.items():
        if lines := list(listed(every, what)):
            parts.append(f"{title}\n\n" + "\n".join(lines) + "\n")
    PAGE.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
