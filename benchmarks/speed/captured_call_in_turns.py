"""Two checkouts of graphdoctor: the time that `graphdoctor.capture` adds to each call, measured in turns.

A host's speed changes by the minute, so each round runs `captured_call.py` of both checkouts one after the other,
each in a process of its own. The medians of the rounds are printed, with the lowest and the highest.

    python benchmarks/speed/captured_call_in_turns.py OLD_CHECKOUT NEW_CHECKOUT [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_SHOWN = ("by_hand_us", "added_us", "before_us", "after_us", "in_a_row_added_us")


def measured(checkout: Path) -> dict[str, Any]:
    """What the checkout's own benchmark measures with this Python."""
    speed = checkout / "benchmarks" / "speed"
    path = os.pathsep.join([str(checkout), str(speed)])
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        subprocess.run(
            [sys.executable, str(speed / "captured_call.py"), "--json", str(found)],
            env={**os.environ, "PYTHONPATH": path},
            cwd=checkout,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        result: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return result


def main() -> None:
    """Measure both in turns, and print a line for each model and figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rounds = [[measured(each.resolve()) for each in args.checkouts] for _ in range(args.rounds)]
    print(rounds[0][0]["machine"])
    for model, figures in rounds[0][0]["models"].items():
        for figure in (name for name in _SHOWN if name in figures):
            cells = []
            for place in range(2):
                found = [each[place]["models"][model][figure] for each in rounds]
                cells.append(
                    f"{statistics.median(found):7.2f} ({min(found):.2f} to {max(found):.2f})"
                )
            print(f"{model:18} {figure:20} {cells[0]:28} -> {cells[1]}")
    if args.json:
        args.json.write_text(json.dumps(rounds, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
