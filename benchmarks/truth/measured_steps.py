"""benchmarks/data -> each measured step: what eager and its graphs took on a GPU, and on which host."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "benchmarks/data"
SAMPLES = DATA / "samples_h200_torch2.11.jsonl"  # on a faster host than the results
RESULTS = DATA / "results/h200_torch2.11.jsonl"
FAMILIES = DATA / "families/h200_torch2.11.jsonl"
KERNELS = DATA / "kernels_h200_torch2.11.jsonl.gz"
EAGER = DATA / "eager_h200_torch2.11.jsonl"
# A graph that took so many times what it took on an idle GPU was disturbed, and judges nothing; neither does what was
# timed while eager took so many times the least that it took beside any strategy, or while so many others had the GPU.
DISTURBED, NOISY, CROWD = 1.15, 1.25, 20
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
    """One strategy, measured in turns with eager in a process of its own."""

    strategy: str
    speedup: float
    step_us: float
    eager_us: float
    busy_us: float  # of eager
    printed: dict[str, float] | None  # the range that was predicted in that run
    calls: int  # in a row, of the strategy and of eager


@dataclass(frozen=True)
class Measured:
    """One step on one host; `timed` are its verified strategies. Where that was not quiet, eager is no truth."""

    case: str
    host: str
    eager_us: float
    busy_us: float
    timed: tuple[Timed, ...] = ()
    is_quiet: bool = True

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
    """Steps of the two hosts: the samples on the faster, all others, and samples again, on the slower."""
    for row in _lines(SAMPLES):
        found = row.get("estimate")
        if found is not None and found["basis"] == "measured":
            eager_us, busy_us = found["eager_us"]["mid"], found["device_busy_us"]["mid"]
            timed = tuple(_of_analysis(row))
            yield Measured(row["case"].removeprefix("sample:"), "server", eager_us, busy_us, timed)
    for case, quiet in _quiet_cells().items():
        yield Measured(
            case,
            "slow-server",
            eager_us=median(one.eager_us for one in quiet),
            busy_us=median(one.busy_us for one in quiet),
            timed=tuple(quiet),
        )


def measured_on_calibrated() -> Iterator[Measured]:
    """Eager steps of hosts that were calibrated, each once: where, and in the round in which, it took least.

    Two machines of one kind, with nothing else of ours on them; what took 1.3 times as long in another round, as half
    of the steps did, was disturbed by others' work.
    """
    traced_us = {case: busy_us for case, (busy_us, _) in _kernel_rows().items()}
    least: dict[str, tuple[float, str]] = {}
    for host, rows in _calibrated().items():
        for row in rows:
            if "eager_us" in row:
                found = (row["eager_us"], host)
                least[row["case"]] = min(found, least.get(row["case"], found))
    for case, (eager_us, host) in least.items():
        yield Measured(case, host, eager_us, traced_us.get(case, 0.0))


def rounds() -> dict[str, float]:
    """Steps that were timed in several rounds on one machine: their number, and the slowest round over the fastest."""
    ratios = []
    for rows in _calibrated().values():
        of_case: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            if "eager_us" in row:
                of_case[row["case"]].append(row["eager_us"])
        ratios += [max(times) / min(times) for times in of_case.values() if len(times) > 1]
    return {"rounds": len(ratios), "slowest": median(ratios), "most": max(ratios)}


def measured_families() -> Iterator[Measured]:
    """Steps of the families that only judge; of each, what kept the device busy, as a profile has it.

    114 processes compiled on the host while they were timed: eager took up to 1.7 times as long in one
    process as in another, and says nothing, but the busy time of the same step differed by 3 % at most.
    """
    found = {row["case"]: _of_cell(row) for row in _lines(FAMILIES)[::-1] if _is_verified(row)}
    for case, one in found.items():
        yield Measured(case, "slow-server", one.eager_us, one.busy_us, is_quiet=False)


@cache
def idle_graphs() -> dict[str, float]:
    """What each whole step took as a graph where it took least: whatever else runs only ever delays it."""
    found = {case: graph_us for case, (_, graph_us) in _kernel_rows().items() if graph_us}
    for case, quiet in _quiet_cells().items():
        for one in quiet:
            if one.strategy == "whole":
                found[case] = min(one.step_us, found.get(case, one.step_us))
    return found


def judges(one: Measured, timed: Timed) -> bool:
    """Whether a strategy's time is a truth: not that of a disturbed graph."""
    idle_us = idle_graphs().get(one.case)
    return timed.strategy != "whole" or idle_us is None or timed.step_us <= DISTURBED * idle_us


@cache
def calibrated_hosts() -> dict[str, str]:
    """The profile of each such host, as `graphdoctor calibrate --host` wrote it."""
    return {host: rows[0]["host"] for host, rows in _calibrated().items()}


def _calibrated() -> dict[str, list[dict[str, Any]]]:
    """The lines of each machine that `benchmarks/gpu/eager.py` ran on."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _lines(EAGER):
        if "host" in row:
            lines = found[f"calibrated-{len(found) + 1}"] = []
        lines.append(row)
    return found


@cache
def _kernel_rows() -> dict[str, tuple[float, float | None]]:
    """By case, the device's time in kernels and what the step took as a graph (benchmarks/gpu/kernels.py)."""
    rows = map(json.loads, gzip.decompress(KERNELS.read_bytes()).decode().splitlines())
    return {
        row["case"]: (
            sum(us for *_, kernels in row["operators"] for _, _, us in kernels),
            row.get("graph_us"),
        )
        for row in rows
        if "operators" in row
    }


@cache
def _quiet_cells() -> dict[str, list[Timed]]:
    """Each verified strategy of each case, as its last run on a quiet host found it."""
    cells: dict[str, dict[str, Timed]] = defaultdict(dict)
    for row in _lines(RESULTS):
        if row.get("estimate"):
            cells[row["case"]] |= {one.strategy: one for one in _of_analysis(row)}
        elif _is_verified(row) and not _is_crowded(row):
            cells[row["case"]][row["strategy"]] = _of_cell(row)
    found = {}
    for case, timed in cells.items():
        least = min(one.eager_us for one in timed.values())
        found[case] = [one for one in timed.values() if one.eager_us <= NOISY * least]
    return found


def _is_verified(row: dict[str, Any]) -> bool:
    found = row.get("row") or {}
    is_timed = found.get("measurement") is not None and 0.0 < found["busy_share_eager"] < 1.0
    return bool(found.get("status") == "verified" and is_timed)


def _is_crowded(row: dict[str, Any]) -> bool:
    others = str(row["row"]["measurement"]["clock_note"]).split(" ")[0]
    return others.isdigit() and int(others) > CROWD


def _of_cell(row: dict[str, Any]) -> Timed:
    return _timed(row["row"], row["row"]["busy_share_eager"])


def _of_analysis(row: dict[str, Any]) -> Iterator[Timed]:
    """The strategies of a report; the whole step of a sample counts as the strategy `whole`."""
    if "strategies" not in row and row.get("measurement"):
        share = row["estimate"]["device_busy_us"]["mid"] / row["estimate"]["eager_us"]["mid"]
        yield _timed({"strategy": "whole", "measurement": row["measurement"]}, share)
    for each in row.get("strategies") or []:
        if each.get("measurement") and each["status"] == "verified" and each["busy_share_eager"]:
            yield _timed(each, each["busy_share_eager"])


def _timed(found: dict[str, Any], busy_share: float) -> Timed:
    timed = found["measurement"]
    return Timed(
        strategy=found["strategy"],
        speedup=timed["speedup"],
        step_us=timed["graph_us"],
        eager_us=timed["eager_us"],
        busy_us=busy_share * timed["eager_us"],
        printed=found.get("predicted"),
        calls=timed["calls_per_block"],
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
