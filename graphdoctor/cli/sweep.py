"""`graphdoctor sweep TARGET`: a model at several batch sizes -> where a graph's gain ends."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.checking import add_input_arguments, add_step_arguments
from graphdoctor.cli.output import add_color_argument, look_of, progress, show
from graphdoctor.reporters.files import check_writable, save
from graphdoctor.values.errors import UserCodeError

if TYPE_CHECKING:
    from graphdoctor.values.sweep import Sweep

STDOUT = "-"
SIZES = "1,2,4,8,16,32,64"
LARGEST = 1_000_000
ITERATIONS = 3  # a proof takes so many replays


class SweepCommand:
    """Try several batch sizes: what a graph brings at each, and where the gain ends.

    TARGET is what `graphdoctor analyze` takes. get_inputs(), get_model() or
    graphdoctor_target() with a parameter batch_size=... is called with each size;
    else rows of the inputs are repeated or left out, and the page says of which.
    """

    name = "sweep"
    help = "find the batch size at which the gain ends"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--batch",
            type=batch_sizes,
            default=batch_sizes(SIZES),
            metavar="N,N,...",
            help=f"the batch sizes (default: {SIZES})",
        )
        add_step_arguments(parser)
        add_input_arguments(parser)
        add("--json", metavar="FILE", help="save the sweep too; - writes it instead of the page")
        add("--all", action="store_true", help="show the bounds of every figure")
        add_color_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        saved_to = Path(args.json) if args.json and args.json != STDOUT else None
        if saved_to is not None:
            check_writable(saved_to)
        sweep = _sweep(args)

        from graphdoctor.reporters import sweep_json, sweep_page

        if saved_to is not None:
            save(sweep_json.render(sweep), saved_to)
        if args.json == STDOUT:
            show(sweep_json.render(sweep))
        else:
            show(sweep_page.render(sweep, look_of(args)))
        return 0


def _sweep(args: argparse.Namespace) -> Sweep:
    """Run the sweep; what the model prints goes to stderr: stdout is for the page."""
    try:
        with progress(sys.stderr) as tell, redirect_stdout(sys.stderr):
            tell("importing torch")
            from graphdoctor.sweep import sweep_target
            from graphdoctor.values.options import AnalyzeOptions

            options = AnalyzeOptions(
                mode=args.mode,
                device=args.device,
                iterations=ITERATIONS,
                inputs=tuple(args.input),
                gpu=args.gpu,
            )
            return sweep_target(args.target, args.batch, options, tell)
    except SystemExit as error:
        raise UserCodeError(
            f"{args.target} ended the interpreter with exit code {error.code!r} instead of running"
            " to its end"
        ) from error


def batch_sizes(text: str) -> tuple[int, ...]:
    """ "1,2,4" as numbers, smallest first; raises argparse.ArgumentTypeError, which says what is wrong."""
    sizes = set()
    for part in text.split(","):
        number = part.strip()
        if not (number.isascii() and number.isdigit() and 1 <= int(number) <= LARGEST):
            raise argparse.ArgumentTypeError(
                f"expected whole numbers from 1 to {LARGEST:,}, joined by commas, such as {SIZES};"
                f" got {part!r}"
            )
        sizes.add(int(number))
    return tuple(sorted(sizes))
