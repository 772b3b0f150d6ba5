"""benchmarks/data -> each measured step: what eager and its graphs took on a GPU, and on which host."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Each file is of one host: the samples ran on the faster of the two.
FILES = {
    "samples_h200_torch2.11.jsonl": "server",
    "results/h200_torch2.11.jsonl": "slow-server",
}
KERNELS = ROOT / "benchmarks/data/kernels_h200_torch2.11.jsonl.gz"
EAGER = ROOT / "benchmarks/data/eager_h200_torch2.11.jsonl"
CALIBRATED = "calibrated"
# A graph that took so many times what it took on an idle GPU was disturbed, and judges nothing.
DISTURBED = 1.15
# Files of which each function is a family.
_OF_SEVERAL = frozenset(
    f"{name}.py"
    for name in (
        *("decode", "learning", "speech", "diffusion"),
        *("sequences", "pictures", "worlds"),
    )
)
# Their kernels' number was counted in these very steps, so that they cannot judge it without a GPU.
FITTED = ("dlrm.py:training", "sequences.py:lstm")


@dataclass(frozen=True)
class Timed:
    """One strategy, measured beside eager in a process of its own."""

    strategy: str
    speedup: float
    step_us: float
    printed: dict[str, float] | None  # the range that was predicted in that run


@dataclass(frozen=True)
class Measured:
    """One step on one host; `timed` are its verified strategies. Where that was not quiet, eager is no truth.

    `launches` were counted by a profiler.
    """

    case: str
    host: str
    eager_us: float
    busy_us: float
    timed: tuple[Timed, ...]
    is_quiet: bool = True
    launches: float | None = None

    @property
    def family(self) -> str:
        """The model, whatever its size, precision or mode: none of it is judged by another of it."""
        file, _, entry = self.case.rpartition("/")[2].partition(":")
        if file in _OF_SEVERAL:
            return entry
        return (
            entry.split("_")[0] if file == "vision.py" else file.removesuffix(".py").split("_")[0]
        )

    @property
    def is_fitted(self) -> bool:
        return self.case.endswith(FITTED)


def measured_steps() -> Iterator[Measured]:
    """Steps of which a profile was taken; the whole step of a sample counts as the strategy `whole`."""
    for name, host in FILES.items():
        text = (ROOT / "benchmarks/data" / name).read_text(encoding="utf-8")
        for row in map(json.loads, text.splitlines()):
            found = row.get("estimate")
            if found is not None and found["basis"] == "measured":
                yield Measured(
                    case=row["case"].removeprefix("sample:"),
                    host=host,
                    eager_us=found["eager_us"]["mid"],
                    busy_us=found["device_busy_us"]["mid"],
                    timed=tuple(_timed(row)),
                )


def idle_graphs() -> dict[str, float]:
    """What each whole step took as a graph while nothing else used the GPU (benchmarks/gpu/kernels.py)."""
    rows = map(json.loads, gzip.decompress(KERNELS.read_bytes()).decode().splitlines())
    return {row["case"]: row["graph_us"] for row in rows if "graph_us" in row}


def measured_on_calibrated() -> Iterator[Measured]:
    """Eager steps of a quiet host that was calibrated, with the graphs of the idle GPU."""
    graphs = idle_graphs()
    for row in _eager_rows():
        graph_us = graphs.get(row.get("case", ""))
        if "eager_us" in row and graph_us is not None:
            eager_us = row["eager_us"]
            timed = (Timed("whole", eager_us / graph_us, graph_us, None),)
            yield Measured(row["case"], CALIBRATED, eager_us, 0.0, timed)


def calibrated_host() -> str:
    """That host's profile, as `graphdoctor calibrate --host` wrote it."""
    return str(next(row["host"] for row in _eager_rows() if "host" in row))


def _eager_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in EAGER.read_text(encoding="utf-8").splitlines()]


def measured_since(known: set[str]) -> Iterator[Measured]:
    """Steps of families that came later, each strategy in a row of its own: they were never fitted to.

    Their host took 0.98 to 1.0 times what the slower one took for three eager steps that both ran (gpt2,
    llama and bert:inference). Eager and its busy time are those beside the whole step.
    """
    for row in _verified("results"):
        if row["strategy"] == "whole":
            one = _of_row(row, (_row_timed(row),))
            if one.family not in known:
                yield one


def measured_families() -> Iterator[Measured]:
    """Steps of the families that only judge; of each, what kept the device busy, as a profile has it.

    114 processes compiled on the host while they were timed: eager took up to 1.7 times as long in one
    process as in another, and says nothing, but the busy time of the same step differed by 3 % at most.
    """
    seen: set[str] = set()
    for row in _verified("families"):
        if row["case"] not in seen and row["row"]["busy_share_eager"] < 1.0:
            seen.add(row["case"])
            yield _of_row(row, (), is_quiet=False)


def _verified(folder: str) -> Iterator[dict[str, Any]]:
    path = ROOT / "benchmarks/data" / folder / "h200_torch2.11.jsonl"
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        found = row.get("row") or {}
        if found.get("status") == "verified" and found.get("measurement") is not None:
            yield row


def _of_row(row: dict[str, Any], timed: tuple[Timed, ...], *, is_quiet: bool = True) -> Measured:
    found = row["row"]
    eager_us = found["measurement"]["eager_us"]
    busy_us = found["busy_share_eager"] * eager_us
    launches = found.get("launches_eager")
    return Measured(row["case"], "slow-server", eager_us, busy_us, timed, is_quiet, launches)


def _row_timed(row: dict[str, Any]) -> Timed:
    found = row["row"]
    timed = found["measurement"]
    return Timed(row["strategy"], timed["speedup"], timed["graph_us"], found.get("predicted"))


def _timed(row: dict[str, Any]) -> Iterator[Timed]:
    if "strategies" not in row and row.get("measurement"):
        timed = row["measurement"]
        yield Timed("whole", timed["speedup"], timed["graph_us"], None)
    for each in row.get("strategies") or []:
        timed = each.get("measurement")
        if timed is not None and each["status"] == "verified":
            yield Timed(
                each["strategy"], timed["speedup"], timed["graph_us"], each.get("predicted")
            )
