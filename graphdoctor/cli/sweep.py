"""`graphdoctor sweep TARGET` measures a model at several batch sizes, and shows where a graph's gain ends."""

from __future__ import annotations

import argparse
from pathlib import Path

from graphdoctor.cli.arguments import add_input_arguments, add_step_arguments, at_least
from graphdoctor.cli.checking import running
from graphdoctor.cli.output import (
    add_color_argument,
    add_json_argument,
    check_json_writable,
    look_of,
    show_or_save,
)

SIZES = "1,2,4,8,16,32,64"
LARGEST = 1_000_000
MOST_GRAPHS = 8
_NO_PLAN = "no size could be captured, so no sizes can be chosen for the log of sizes"
ITERATIONS = 3  # a proof takes so many replays


class SweepCommand:
    """Try several batch sizes: what a graph brings at each, and where the gain ends.

    TARGET is what `graphdoctor analyze` takes. get_inputs(), get_model() or
    graphdoctor_target() with a parameter batch_size=... is called with each size;
    else rows of the inputs are repeated or left out, and the page says of which.
    With a log of the sizes that a program meets, it says which to capture.
    """

    name = "sweep"
    help = "find the batch size at which the gain ends"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--batch",
            type=batch_sizes,
            metavar="N,N,...",
            help=f"the batch sizes (default: {SIZES}, or those of --lengths)",
        )
        add(
            "--lengths",
            metavar="FILE",
            help="a log of batch sizes, one a line: say which to capture graphs for",
        )
        add(
            "--max-graphs",
            type=at_least(1),
            default=MOST_GRAPHS,
            metavar="N",
            help=f"the most graphs to capture for --lengths (default: {MOST_GRAPHS})",
        )
        add_step_arguments(parser)
        add_input_arguments(parser)
        add_json_argument(parser, "sweep")
        add(
            "--tensorboard",
            metavar="DIR",
            help="write curves over the batch sizes for TensorBoard into this folder",
        )
        add("--all", action="store_true", help="show the bounds of every figure")
        add_color_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_json_writable(args)
        with running(args) as tell:
            from msgspec.structs import replace

            from graphdoctor.reporters.tensorboard.curves import summary_writer, write_sweep
            from graphdoctor.sweep import plan_lengths, read_lengths, sizes_to_sweep, sweep_target
            from graphdoctor.values.options import AnalyzeOptions

            if args.tensorboard is not None:
                summary_writer()  # says at once that TensorBoard is missing
            lengths = read_lengths(args.lengths) if args.lengths is not None else None
            batches = args.batch
            if batches is None:
                batches = batch_sizes(SIZES) if lengths is None else sizes_to_sweep(lengths)

            options = AnalyzeOptions(
                mode=args.mode,
                device=args.device,
                iterations=ITERATIONS,
                inputs=tuple(args.input),
                gpu=args.gpu,
                host=args.host,
                fixed_inputs=args.inputs == "fixed",
            )
            sweep = sweep_target(args.target, batches, options, tell)
            if lengths is not None:
                plan = plan_lengths(lengths, sweep.rows, most_graphs=args.max_graphs)
                notes = sweep.notes if plan is not None else (*sweep.notes, _NO_PLAN)
                sweep = replace(sweep, lengths=plan, notes=notes)

        from graphdoctor.reporters import sweep_page
        from graphdoctor.reporters.plain_json import written

        show_or_save(
            args,
            json=lambda: written(sweep),
            page=lambda: sweep_page.render(sweep, look_of(args)),
        )
        if args.tensorboard is not None:
            write_sweep(sweep, Path(args.tensorboard))
        return 0


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
