"""`graphdoctor calibrate` measures this machine's GPU, or its host alone, and writes a profile."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from graphdoctor.cli.output import progress, show
from graphdoctor.reporters.files import check_writable, save
from graphdoctor.values.escape import visible


class CalibrateCommand:
    """Measure this machine's GPU and host, for predictions with its own figures.

    Pass the profile that it writes with --gpu FILE. With --host only the host is
    measured, in about two seconds and without a GPU: pass that profile with
    --host FILE, and `analyze --gpu h200` predicts for this machine with an H200.
    What was seen on the way to the figures is shown too, and kept as comments.
    """

    name = "calibrate"
    help = "measure this machine for predictions"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--host", action="store_true", help="measure the host alone, which needs no GPU"
        )
        parser.add_argument(
            "-o", "--output", metavar="FILE", type=Path, help="where to save it (default: show it)"
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.output is not None:
            check_writable(args.output)
        with progress(sys.stderr) as tell:
            tell("importing torch")
            text, seen = _host(tell) if args.host else _profile(tell)
        for line in seen:
            print(line, file=sys.stderr)
        if args.output is None:
            show(text)
            return 0
        save(text, args.output)
        profiles = (
            "--gpu h200 --host" if args.host else "--gpu",
            visible(shlex.quote(str(args.output))),
        )
        print(f"predict with it: graphdoctor analyze TARGET {' '.join(profiles)}", file=sys.stderr)
        return 0


def _host(tell: Callable[[str], None]) -> tuple[str, tuple[str, ...]]:
    """The host's profile, and what was measured on the way to it."""
    import platform

    import torch

    from graphdoctor.measure.calibrate import host_text, measure_host

    tell("measuring the host")
    software = f"Python {platform.python_version()}, torch {torch.__version__}"
    found = measure_host(_processor(), software)
    return host_text(found), found.seen


def _processor() -> str:
    """The processor's name, as Linux has it, else as Python does."""
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _profile(tell: Callable[[str], None]) -> tuple[str, tuple[str, ...]]:
    """The profile, and what was measured on the way to it."""
    from graphdoctor.estimate.gpus import load_profile
    from graphdoctor.measure.calibrate import calibrate, profile_text
    from graphdoctor.measure.calibrate.gpu import GpuMachine
    from graphdoctor.values.errors import UsageError

    machine = GpuMachine()
    try:
        base = load_profile(machine.name)
    except UsageError as error:
        raise UsageError(
            f"{error}; a calibration also needs the peak rates of the data sheet: copy the profile of"
            " a similar GPU, write them into it, and pass it with --gpu"
        ) from error
    found = calibrate(machine, base, tell)
    return profile_text(found, base, machine.name), found.seen
