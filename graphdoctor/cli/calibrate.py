"""`graphdoctor calibrate`: this machine's GPU -> a device profile with its own figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from graphdoctor.cli.output import progress, show
from graphdoctor.reporters.files import check_writable, save


class CalibrateCommand:
    """Measure this machine's GPU and host, for predictions with its own figures.

    Pass the profile that it writes with --gpu FILE. What was seen on the way to
    figures that are differences is shown too, and kept as comments in the profile.
    """

    name = "calibrate"
    help = "measure this machine for predictions"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "-o", "--output", metavar="FILE", type=Path, help="where to save it (default: show it)"
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.output is not None:
            check_writable(args.output)
        with progress(sys.stderr) as tell:
            tell("importing torch")
            text, seen = _profile(tell)
        for line in seen:
            print(line, file=sys.stderr)
        if args.output is not None:
            save(text, args.output)
        else:
            show(text)
        return 0


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
