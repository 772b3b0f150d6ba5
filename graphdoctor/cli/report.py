"""`graphdoctor report FILE`: a saved report -> its page again, without torch."""

from __future__ import annotations

import argparse
from pathlib import Path

from graphdoctor.cli.output import add_page_arguments, look_of, show


class ReportCommand:
    """Show what --json of `analyze`, `run`, `sweep`, `trace`, `watch` and `audit`,
    or `check --report json=FILE`, saved; needs no torch.
    """

    name = "report"
    help = "show a saved report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", type=Path, help="the saved report")
        add_page_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        from graphdoctor.reporters.files import read
        from graphdoctor.reporters.saved import text_of

        show(text_of(read(args.file), look_of(args), name=str(args.file)))
        return 0
