"""`graphdoctor check` reports what is new or worse in a project's models than in its baseline."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from graphdoctor.cli.arguments import add_run_arguments, add_settings_arguments
from graphdoctor.cli.checking import choose, load_project, run
from graphdoctor.cli.output import (
    add_page_arguments,
    add_report_argument,
    check_reports_writable,
    look_of,
    save_reports,
    show,
)
from graphdoctor.reporters.files import check_writable, save
from graphdoctor.reporters.formats import names_of, written_as
from graphdoctor.values.errors import UsageError
from graphdoctor.values.escape import visible, visible_lines

if TYPE_CHECKING:
    from graphdoctor.check.baseline_update import Acceptance
    from graphdoctor.check.gate import Outcome
    from graphdoctor.check.settings.files import Project
    from graphdoctor.check.settings.settings import TargetSettings
    from graphdoctor.values.check import Check, Shard


STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
_MOST_SUMMARY_CHARACTERS = 250_000  # GitHub takes 1 MiB a step; a character has up to 4 bytes


class CheckCommand:
    """Fail if a model has a new finding, or lost what a graph could hold.

    Checks targets: files with a function graphdoctor_target() that returns a model
    and its inputs (`graphdoctor init` writes them).

    Compares with the baseline that `graphdoctor baseline` wrote, and with the
    budgets in [tool.graphdoctor] of pyproject.toml. Needs no GPU. Exits with 1 on
    a new finding or a regression.
    """

    name = "check"
    help = "check a project's models before a merge"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run_arguments(parser)
        parser.add_argument(
            "--changed",
            nargs="?",
            const="HEAD",
            metavar="REF",
            help="only targets that a change touches: what differs from where this branch left REF,"
            " such as origin/main; without REF, what is not committed",
        )
        parser.add_argument(
            "--shard",
            type=_shard,
            metavar="N/COUNT",
            help="only this share of the targets, such as 2/8; see `graphdoctor merge`",
        )
        parser.add_argument(
            "--executor",
            metavar="URL",
            help="analyze the targets on a cluster: dask://HOST:8786",
        )
        add_format_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_reports_writable(args)
        from graphdoctor.check.baseline import read

        project = load_project(args)
        accepted = read(project.baseline_path)
        targets, is_complete = choose(args.paths, project)
        shard = None
        if args.changed is not None or args.shard is not None:
            targets, shard = _narrowed(targets, project, args)
            is_complete = False
        with ExitStack() as stack:
            executor = None
            if args.executor is not None:
                from graphdoctor.trace.explain.folder import cluster

                executor = stack.enter_context(cluster(args.executor))
            outcomes = run(
                targets, project, inputs=args.inputs, no_cache=args.no_cache, executor=executor
            )

        from msgspec.structs import replace

        from graphdoctor.check.gate import gate

        check = replace(gate(outcomes, accepted, project, is_complete=is_complete), shard=shard)
        report_all(check, args)
        return check.exit_code


def add_format_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that shows a check."""
    formats = names_of("Check")
    parser.add_argument(
        "--output-format",
        choices=formats,
        default=formats[0],
        metavar="FORMAT",
        help=f"one of {', '.join(formats)}; default: {formats[0]}",
    )
    add_report_argument(parser, "Check")
    add_page_arguments(parser)


def _narrowed(
    targets: Sequence[TargetSettings], project: Project, args: argparse.Namespace
) -> tuple[tuple[TargetSettings, ...], Shard | None]:
    """Those that a change touches, and then this machine's share of them."""
    from graphdoctor.check.narrow import shard_of, share, touched_since
    from graphdoctor.check.run_targets import cache_of
    from graphdoctor.values.figures import count_text

    if args.changed is not None:
        cache = None if args.no_cache else cache_of(project)
        touched = touched_since(args.changed, targets, project, cache)
        print(
            f"graphdoctor: {len(touched.targets)} of {count_text(len(targets), 'target')} touched by"
            f" {count_text(touched.files, 'changed file')} since {visible(args.changed)}",
            file=sys.stderr,
        )
        targets = touched.targets
    if args.shard is None:
        return tuple(targets), None
    shard = shard_of(targets, *args.shard)
    return tuple(share(targets, shard)), shard


def _shard(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise argparse.ArgumentTypeError(f"expected N/COUNT, such as 2/8, got {text!r}")


def report_all(check: Check, args: argparse.Namespace) -> None:
    """Files first: they must be there even if nobody reads stdout to its end."""
    from graphdoctor.reporters.look import Look

    save_reports(args, check, Look(show_all=True))
    if args.output_format == "github":
        _write_step_summary(check)
    show(written_as(args.output_format, check, look_of(args)))


def _write_step_summary(check: Check) -> None:
    """On GitHub, what exceeds the caps of annotations is on the page of the job."""
    from graphdoctor.reporters.check.markdown import render_within

    path = os.environ.get(STEP_SUMMARY)
    if not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as summary:
            summary.write(render_within(check, _MOST_SUMMARY_CHARACTERS))
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot write the step summary {path}: {reason}") from error


class MergeCommand:
    """Make one check of those that `graphdoctor check --report json=FILE` saved.

    As `graphdoctor check` of all their targets would have been: one page, one
    SARIF, one exit code, against the baseline and the budgets that hold here. A
    shard that is missing is an error. `graphdoctor baseline --from FILE ...`
    accepts what they found.
    """

    name = "merge"
    help = "make one check of several machines' shares"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "files", nargs="+", metavar="FILE", type=Path, help="a saved check, as JSON"
        )
        add_settings_arguments(parser)
        add_format_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_reports_writable(args)
        from graphdoctor.check.baseline import read
        from graphdoctor.check.gate import gate, outcomes_of, read_checks

        project = load_project(args)
        accepted = read(project.baseline_path)
        outcomes, is_complete = outcomes_of(read_checks(args.files), project)
        check = gate(outcomes, accepted, project, is_complete=is_complete)
        report_all(check, args)
        return check.exit_code


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
    from graphdoctor.check.gate import outcomes_of, read_checks

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
