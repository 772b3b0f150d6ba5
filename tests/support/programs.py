"""A program in a file -> its report and what it printed, without a GPU."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

from graphdoctor.pipeline import diagnose_program
from graphdoctor.target.program.launch import Program
from graphdoctor.values.options import AnalyzeOptions, Bounds, DeviceChoice, RunOptions
from graphdoctor.values.program import ProgramReport

SAMPLES = Path(__file__).parents[2] / "sample_programs"
NEVER = 1_000_000  # steps; no program here takes so many


@dataclass(frozen=True)
class Ran:
    """A program's run: `printed` is its own output, `said` its traceback."""

    report: ProgramReport
    printed: str
    said: str

    @property
    def summary(self) -> list[tuple[str, str, str, tuple[str, ...]]]:
        """For each step its name, mode, verdict and the rules of its findings."""
        return [
            (
                step.name,
                step.mode,
                step.report.verdict if step.report else step.reason,
                tuple(sorted({f.rule for f in step.report.findings} if step.report else ())),
            )
            for step in self.report.steps
        ]


def run(
    file: Path,
    *arguments: str,
    after: int = 3,
    ends: bool = False,
    on_cpu: bool = False,
    device: DeviceChoice = "emulated",
    only: str = "",
) -> Ran:
    """Run it to its end, on the emulated device unless another is named; `after` NEVER runs it without a diagnosis."""
    options = RunOptions(
        AnalyzeOptions(device=device, strategies=()),
        Bounds(after=after, steps=3, ends=ends, only=only),
        is_left_on_cpu=on_cpu,
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        report, said = diagnose_program(Program(str(file), arguments), options, lambda doing: None)
    return Ran(report, printed.getvalue(), said)
