"""`graphdoctor show-settings`: the settings that hold here, as TOML, and where they are from."""

from __future__ import annotations

import argparse

from graphdoctor.cli.arguments import add_settings_arguments
from graphdoctor.cli.checking import load_project
from graphdoctor.cli.output import show

FILES = ("graphdoctor.toml", "pyproject.toml")


class ShowSettingsCommand:
    """Print the settings that hold in this folder, as TOML, defaults included.

    With --schema, a JSON schema of them, by which editors complete and check.
    """

    name = "show-settings"
    help = "print the settings that hold here"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_settings_arguments(parser)
        parser.add_argument(
            "--schema",
            nargs="?",
            const=FILES[0],
            choices=FILES,
            help=f"print the JSON schema of {FILES[0]} (the default) or of {FILES[1]} instead",
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.schema is not None:
            import json

            from graphdoctor.check.settings.schema import settings_schema

            show(json.dumps(settings_schema(args.schema), indent=2) + "\n")
            return 0
        from graphdoctor.check.settings.toml import settings_toml

        project = load_project(args)
        show(f"# from {project.source}\n{settings_toml(project.settings)}")
        return 0
