"""`warm.command("tests.support.script", FILE)`: what `python FILE` runs, without the imports."""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    runpy.run_path(sys.argv[1], run_name="__main__")
