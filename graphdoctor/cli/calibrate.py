"""`graphdoctor calibrate`: this machine's GPU -> a device profile with its own figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from graphdoctor.cli.output import progress, show
from graphdoctor.files import check_writable, save


class CalibrateCommand:
    """Measure this machine's GPU and host, for predictions with its own figures.

    Pass the profile that it writes with --gpu FILE.
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
            text = _profile(tell)
        if args.output is not None:
            save(text, args.output)
        else:
            show(text)
        return 0


def _profile(tell: object) -> str:
    from graphdoctor.calibrate import calibrate, profile_text
    from graphdoctor.calibrate.gpu import GpuMachine
    from graphdoctor.errors import UsageError
    from graphdoctor.profiles import load_profile

    machine = GpuMachine()
    try:
        base = load_profile(machine.name)
    except UsageError as error:
        raise UsageError(
            f"{error} The peak rates of a data sheet are needed as well: copy the profile of a"
            " similar GPU, write in its figures, and pass it with --gpu."
        ) from error
    return profile_text(calibrate(machine, base, tell), base, machine.name)  # type: ignore[arg-type]
