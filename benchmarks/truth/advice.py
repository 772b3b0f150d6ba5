"""Steps with a hazard, and the same steps after the printed cure -> for which of them the cure holds.

    python benchmarks/truth/advice.py benchmarks/data/advice.jsonl

A cure holds if the finding and the cure are printed, and if the step after the cure has no finding, is captured on
the emulated device, replays as eager runs it, and, of the variants with `same`, returns what the step before returned.
Those of GD216 run on two ranks.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.rules.advice import collectives  # noqa: E402
from tests.rules.advice.all import ALL  # noqa: E402
from tests.support.following import failure_of  # noqa: E402
from tests.support.on_ranks import analyzed  # noqa: E402


def failure_on_ranks(name: str) -> str:
    """Where the cure of a step of several ranks fails, as `failure_of` says it."""
    source = Path(collectives.__file__).read_text(encoding="utf-8")
    reports = []
    for each in (name, f"{name}_after"):
        with tempfile.TemporaryDirectory() as work:
            analyzed(Path(work), source, each, "--json", "report.json")
            reports.append(json.loads(Path(work, "report.json").read_text(encoding="utf-8")))
    before, after = reports
    if "GD216" not in [found["rule"] for found in before["findings"]]:
        return "GD216 is not found"
    return "" if after["verdict"] == "safe" else f"after the cure: {after['reason']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    about: dict[str, object] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
    }
    about["compared"] = sum(variant.same for variant in ALL)
    lines: list[dict[str, object]] = [about]
    for variant in ALL:
        try:
            failed = failure_of(variant)
        except Exception as error:  # a cure that raises does not hold
            failed = f"{type(error).__name__}: {error}"
        lines.append(
            {
                "rule": variant.rule,
                "variant": variant.name,
                "holds": not failed,
                "why": failed[:200],
            }
        )
    for name in collectives.RANKED:
        failed = failure_on_ranks(name)
        lines.append({"rule": "GD216", "variant": name, "holds": not failed, "why": failed[:200]})
    given.out.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    print(f"{sum(line.get('holds', False) is True for line in lines)} of {len(lines) - 1} hold")


if __name__ == "__main__":
    main()
