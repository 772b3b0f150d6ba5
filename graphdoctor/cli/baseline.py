"""`graphdoctor baseline`: today's findings -> the file that `graphdoctor check` compares with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.arguments import add_run_arguments
from graphdoctor.cli.checking import choose, load_project, run
from graphdoctor.cli.output import show
from graphdoctor.reporters.files import check_writable, save
from graphdoctor.values.errors import UsageError
from graphdoctor.values.escape import visible, visible_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphdoctor.check.baseline_update import Acceptance
    from graphdoctor.check.gate import Outcome
    from graphdoctor.check.settings.files import Project

GROWN = 1
_SHOWN = 20


class BaselineCommand:
    """Accept today's findings, so that `graphdoctor check` fails on new ones only.

    Once it is written, the baseline may only shrink: whatever it lacks has to be
    allowed with --allow-growth.
    """

    name = "baseline"
    help = "accept today's findings"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run_arguments(parser)
        parser.add_argument(
            "--from",
            dest="saved",
            nargs="+",
            default=[],
            type=Path,
            metavar="FILE",
            help="take what `graphdoctor check --report json=FILE` found, instead of analyzing;"
            " all shards of a check",
        )
        how = parser.add_mutually_exclusive_group()
        how.add_argument(
            "--prune", action="store_true", help="only drop entries that no longer occur"
        )
        how.add_argument(
            "--allow-growth", action="store_true", help="accept new findings and worse figures too"
        )

    def run(self, args: argparse.Namespace) -> int:
        from graphdoctor.check.baseline import read, render

        project = load_project(args)
        path = project.baseline_path
        check_writable(path)
        old = read(path)
        is_first = not path.exists()
        outcomes, is_complete = _outcomes(args, project)

        from graphdoctor.check.baseline_update import accept, prune

        change = prune if args.prune else accept
        accepted = change(outcomes, old, project, is_complete=is_complete)
        if accepted.growth and not (is_first or args.allow_growth):
            show(_refusal(accepted, project.settings.baseline))
            return GROWN
        save(render(accepted.baseline), path)
        show(_summary(accepted, project.settings.baseline))
        return _tell_faults(outcomes)


def _outcomes(args: argparse.Namespace, project: Project) -> tuple[list[Outcome], bool]:
    """Of saved checks or of a new one, and whether no target of the settings is missing."""
    if not args.saved:
        targets, is_complete = choose(args.paths, project)
        return run(targets, project, inputs=args.inputs, no_cache=args.no_cache), is_complete
    if args.paths:
        raise UsageError(
            f"--from takes every target of the saved checks: leave {args.paths[0]} out"
        )
    from graphdoctor.check.saved_checks import outcomes_of, read_checks

    return outcomes_of(read_checks(args.saved), project)


def _refusal(accepted: Acceptance, path: str) -> str:
    """What would have to be allowed."""
    lines = [f"{visible(path)} is unchanged: it may only shrink, and this run would add", ""]
    lines += [f"  {visible(sentence)}" for sentence in accepted.growth[:_SHOWN]]
    if accepted.growth[_SHOWN:]:
        lines.append(f"  and {len(accepted.growth) - _SHOWN} more")
    lines += ["", "Fix these, or accept them with `graphdoctor baseline --allow-growth`."]
    return "\n".join(lines) + "\n"


def _summary(accepted: Acceptance, path: str) -> str:
    from graphdoctor.values.figures import count_text

    entries, targets = len(accepted.baseline.entries), len(accepted.baseline.targets)
    return (
        f"{visible(path)}: {count_text(entries, 'finding')} of"
        f" {count_text(targets, 'target')} accepted"
        f" ({accepted.added} added, {accepted.dropped} dropped)\n"
    )


def _tell_faults(outcomes: Sequence[Outcome]) -> int:
    """Targets that could not be analysed keep what they had; the worst of them is the exit code."""
    from graphdoctor.values.check import Fault

    codes = []
    for outcome in outcomes:
        if isinstance(outcome.result, Fault):
            codes.append(outcome.result.exit_code)
            message = f"{outcome.target.name}: {outcome.result.message}"
            print(f"graphdoctor: not analyzed: {visible(message)}", file=sys.stderr)
            for line in visible_lines(outcome.result.details) if outcome.result.details else ():
                print(f"  {line}", file=sys.stderr)
    return min(codes, default=0)
