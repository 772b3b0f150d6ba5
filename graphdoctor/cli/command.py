"""What a command is: a name, a line of help, its arguments, and what it does with them."""

from __future__ import annotations

import argparse
from typing import Protocol


class Command(Protocol):
    """One command. Its class docstring is the description in --help.

    Its module imports nothing heavy, so that --help is quick: `run` imports what it needs.
    """

    name: str
    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit code. Raises GraphDoctorError for what a person can act on."""
