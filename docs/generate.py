"""Rules and report types -> docs/rules/*.md and docs/report.schema.json; run by `make docs`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from graphdoctor.cli.rule_page import markdown
from graphdoctor.reporters.figures import EFFECT_WORDS
from graphdoctor.reporters.json import schema
from graphdoctor.rules import ALL_RULES

DOCS = Path(__file__).parent


def pages() -> dict[Path, str]:
    """Every generated file, by its path below docs/."""
    generated = {Path("rules") / f"{rule.id}.md": markdown(rule) for rule in ALL_RULES}
    generated[Path("rules/README.md")] = _index()
    generated[Path("report.schema.json")] = json.dumps(schema(), indent=2) + "\n"
    return generated


def outdated() -> list[Path]:
    """Generated files that are missing or differ, and files that should not be there."""
    wanted = pages()
    there = {path.relative_to(DOCS) for path in DOCS.glob("rules/*.md")}
    differing = [path for path, text in wanted.items() if _text(DOCS / path) != text]
    return sorted({*differing, *(there - set(wanted))})


def main() -> None:
    """Write what is outdated, and name it."""
    wanted = pages()
    for path in outdated():
        file = DOCS / path
        if path in wanted:
            file.parent.mkdir(exist_ok=True)
            file.write_text(wanted[path], encoding="utf-8")
        else:
            file.unlink()
        print(f"docs/{path}", file=sys.stderr)


def _index() -> str:
    rows = []
    for rule in sorted(ALL_RULES, key=lambda rule: rule.id):
        cells = (f"[{rule.id}]({rule.id}.md)", rule.name, EFFECT_WORDS[rule.effect], rule.title())
        rows.append(f"| {' | '.join(cells)} |")
    head = ("# Rules", "", "| id | name | effect | what it finds |", "|---|---|---|---|")
    return "\n".join((*head, *rows, ""))


def _text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


if __name__ == "__main__":
    main()
