"""`graphdoctor show-settings`: the settings that hold here, as TOML, and where they are from."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from graphdoctor.cli.checking import add_settings_arguments, load_project
from graphdoctor.cli.output import show

if TYPE_CHECKING:
    from graphdoctor.check.settings.files import Project


class ShowSettingsCommand:
    """Print the settings that hold in this folder, as TOML, defaults included."""

    name = "show-settings"
    help = "print the settings that hold here"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_settings_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        show(_text(load_project(args)))
        return 0


def _text(project: Project) -> str:
    from graphdoctor.check.settings.toml import settings_toml

    return f"# from {project.source}\n{settings_toml(project.settings)}"
