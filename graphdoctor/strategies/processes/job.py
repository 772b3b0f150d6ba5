"""What a process that tries one strategy is told, and where it leaves the row."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import msgspec

from graphdoctor.strategies.strategy import Strategy
from graphdoctor.values.options import DeviceChoice
from graphdoctor.values.recording import Iteration
from graphdoctor.values.report import Finding, Mode, StrategyOutcome

JOB, ROW, OUTPUT = "job.pickle", "row.msgpack", "output.txt"


@dataclass(frozen=True, slots=True)
class Job:
    """One strategy on one target, which the process finds again by its `spec`.

    `row` is what was foreseen; `findings`, `safe_modules` and `iteration` are those of `Known`.
    `gpu` names the device profile. The process has `time_limit_s` from when its gate is opened.
    """

    spec: str
    mode: Mode | None
    inputs: tuple[str, ...]
    device: DeviceChoice
    iterations: int
    gpu: str
    strategy: Strategy
    row: StrategyOutcome
    findings: tuple[Finding, ...]
    safe_modules: tuple[str, ...]
    iteration: Iteration
    measure_s: float
    time_limit_s: float
    fixed_inputs: bool = False

    def write(self, folder: Path) -> None:
        """Pickled: a recorded argument may hold itself, which msgspec cannot describe."""
        (folder / JOB).write_bytes(pickle.dumps(self))

    @staticmethod
    def read(folder: Path) -> Job:
        """From the private folder that the parent process made, and from nowhere else."""
        found: Job = pickle.loads((folder / JOB).read_bytes())
        return found


def write_row(folder: Path, row: StrategyOutcome) -> None:
    """Whole or not at all: the process may be killed at any moment."""
    part = folder / f"{ROW}.part"
    part.write_bytes(msgspec.msgpack.encode(row))
    part.replace(folder / ROW)


def read_row(folder: Path) -> StrategyOutcome | None:
    """None where the process left none."""
    try:
        return msgspec.msgpack.decode((folder / ROW).read_bytes(), type=StrategyOutcome)
    except (OSError, msgspec.DecodeError):
        return None
