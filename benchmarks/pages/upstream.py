"""benchmarks/data/upstream.jsonl -> docs/upstream.md: bugs that libraries fixed, before and after.

python benchmarks/pages/upstream.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tables import Row, jsonl, table

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "benchmarks/data/upstream.jsonl"  # benchmarks/truth/upstream.py
PAGE = ROOT / "docs/upstream.md"
HEAD = ("step", "package", "finding before", "line before", "verdict after", "fixed by")

OPENING = """# Bugs that libraries fixed

Each row is a bug that a public library fixed: a step that a CUDA graph could not capture or that made the CPU wait.
`graphdoctor analyze` ran on the version before the fix and on the version after it, without a GPU ({torch},
{dates}).

`python benchmarks/truth/upstream.py benchmarks/data/upstream.jsonl --installs DIR` installs the versions and
repeats every row. `benchmarks/truth/upstream/manifest.toml` has the step of each row.
"""
REMAINING = """
## Findings that the fix leaves

The version after the fix has other findings in these steps.
"""
ALIVE = """
## Hazards in today's releases

`DEVICE` is `"cuda"` where there is a GPU; `benchmarks/truth/upstream.py` writes the rest of the file.
With `--gpu` it captures each step on the GPU of the machine, without graphdoctor.
"""


def page(rows: list[Row]) -> str:
    torches = ", ".join(sorted({f"torch {row['torch'].partition('+')[0]}" for row in rows}))
    dates = " to ".join(sorted({row["date"] for row in rows}))
    fixed, alive = ([row for row in rows if ("today" in row) is kept] for kept in (False, True))
    parts = [OPENING.format(torch=torches, dates=dates), "\n".join(table(HEAD, map(_row, fixed)))]
    columns = ("step", "version", "finding")
    if left := [row for row in fixed if row["after"]["findings"]]:
        parts += [REMAINING, "\n".join(table(columns, (_left(row, "after") for row in left)))]
    if alive:
        parts += [ALIVE, "\n".join(table(columns, (_left(row, "today") for row in alive)))]
        if seen := [row for row in alive if "captured" in row]:
            parts += ["", "\n".join(table(("step", "GPU", "real capture"), map(_captured, seen)))]
        parts += [f"\n```python\n{row['step'].strip()}\n```" for row in alive]
    return "\n".join(parts).rstrip() + "\n"


def _row(row: Row) -> Iterator[str]:
    before, after = row["before"], row["after"]
    found = [(file, line) for rule, file, line in before["findings"] if rule == row["rule"]]
    yield from (row["name"], f"{row['package']} {before['version']}")
    yield f"[{row['rule']}](rules/{row['rule']}.md)"
    yield ", ".join(f"`{file}:{line}`" for file, line in found)
    yield f"{after['verdict']} ({after['version']})"
    yield row["reference"]


def _captured(row: Row) -> Iterator[str]:
    seen = row["captured"]
    yield from (
        row["name"],
        f"{seen['gpu']}, torch {seen['torch'].partition('+')[0]}",
        seen["capture"],
    )


def _left(row: Row, when: str) -> Iterator[str]:
    said = row[when]
    yield from (row["name"], f"{row['package']} {said['version']}")
    yield ", ".join(f"{rule} `{file}:{line}`" for rule, file, line in said["findings"])


if __name__ == "__main__":
    PAGE.write_text(page(jsonl(DATA)), encoding="utf-8")
