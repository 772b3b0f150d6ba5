"""benchmarks/README.md names the command of every committed measurement, and each script that it names is there."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8").split("| figure | command |")[1]
ROWS = [line.split(" | ") for line in TABLE.splitlines() if line.startswith("| ")]
NAMED = re.compile(r"data/[\w/<>*.]+")


def test_every_committed_measurement_has_its_command() -> None:
    named = [re.sub(r"<\w+>", "*", name) for row in ROWS for name in NAMED.findall(row[0])]
    named += NAMED.findall(" ".join(row[-1] for row in ROWS))  # what is counted from logs by hand
    files = [path for path in (ROOT / "benchmarks/data").rglob("*") if path.is_file()]
    assert files
    without = [
        path.name
        for path in files
        if not any(fnmatch(str(path.relative_to(ROOT / "benchmarks")), name) for name in named)
    ]
    assert without == []


def test_every_script_that_is_named_is_there() -> None:
    scripts = {name for row in ROWS for name in re.findall(r"[\w/]+\.py\b", row[-1])}
    roots = (ROOT, ROOT / "benchmarks", ROOT / "benchmarks/truth")
    missing = [name for name in scripts if not any((root / name).exists() for root in roots)]
    assert scripts and missing == []
