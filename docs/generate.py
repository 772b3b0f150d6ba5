"""Rules, operators, report types, the demo -> docs/rules/, docs/operators.md, schemas, README.md: `make docs`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from graphdoctor.check.settings.toml import settings_schema
from graphdoctor.cli.explain import markdown
from graphdoctor.operators import CONDITIONS, EFFECTS, OperatorFact, evidence_words, load_table
from graphdoctor.reporters.plain_json import NOT_FINITE
from graphdoctor.rules import ALL_RULES
from graphdoctor.values.audited import AUDIT_SCHEMA_VERSION, AuditReport
from graphdoctor.values.finding import EFFECT_WORDS
from graphdoctor.values.program import PROGRAM_SCHEMA_VERSION, ProgramReport
from graphdoctor.values.report import SCHEMA_VERSION, Report
from graphdoctor.values.sweep import SWEEP_SCHEMA_VERSION, Sweep
from graphdoctor.values.trace import TRACE_SCHEMA_VERSION, AnyTrace
from graphdoctor.values.watched import WATCH_SCHEMA_VERSION, WatchReport

DOCS = Path(__file__).parent
DEMO = "sample_models/adam_training.py"
_BEGIN, _END = "<!-- DEMO OUTPUT", "<!-- END OF DEMO OUTPUT -->"


def pages() -> dict[Path, str]:
    """Every generated file, by its path below docs/."""
    generated = {Path("rules") / f"{rule.id}.md": markdown(rule) for rule in ALL_RULES}
    generated[Path("rules/README.md")] = _index()
    generated[Path("operators.md")] = _operators()
    for name, schema in _schemas():
        generated[Path(f"{name}.schema.json")] = json.dumps(schema, indent=2) + "\n"
    return generated


def _schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """What each command saves, and the settings."""
    traces = "`graphdoctor trace --json` writes: one trace, for a folder all of them, or two before and after a change"
    for name, types, title, writes, version in (
        ("report", (Report,), "graphdoctor report", "`graphdoctor analyze --json` writes", SCHEMA_VERSION),
        ("program", (ProgramReport,), "graphdoctor run", "`graphdoctor run --json` writes", PROGRAM_SCHEMA_VERSION),
        ("sweep", (Sweep,), "graphdoctor sweep", "`graphdoctor sweep --json` writes", SWEEP_SCHEMA_VERSION),
        ("watch", (WatchReport,), "graphdoctor watch", "`graphdoctor watch --json` writes", WATCH_SCHEMA_VERSION),
        ("audit", (AuditReport,), "graphdoctor audit", "`graphdoctor audit --json` writes", AUDIT_SCHEMA_VERSION),
        ("trace", get_args(AnyTrace), "graphdoctor trace report", traces, TRACE_SCHEMA_VERSION),
    ):  # fmt: skip
        references, components = msgspec.json.schema_components(
            types, ref_template="#/$defs/{name}"
        )
        yield (
            name,
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "title": title,
                "description": f"What {writes}, version {version}.",
                **(references[0] if len(types) == 1 else {"anyOf": list(references)}),
                "$defs": _allow_not_finite(components),
            },
        )
    yield "settings", settings_schema("graphdoctor.toml")


def _allow_not_finite(value: Any) -> Any:
    """The schema with every number also allowed to be one of the words for those JSON lacks."""
    if isinstance(value, list):
        return [_allow_not_finite(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "number":
        return {"anyOf": [value, {"enum": list(NOT_FINITE.values())}]}
    return {key: _allow_not_finite(item) for key, item in value.items()}


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


def with_demo(readme: str, page: str) -> str:
    """The README around what `make demo` prints."""
    before, _, rest = readme.partition(_BEGIN)
    comment, _, rest = rest.partition("-->\n")
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{comment}-->\n```\n{page.rstrip()}\n```\n{_END}{after}"


def _write_demo() -> None:
    command = [sys.executable, "-m", "graphdoctor", "analyze", DEMO, "--device", "emulated"]
    done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, check=True)
    readme = DOCS.parent / "README.md"
    readme.write_text(with_demo(readme.read_text(encoding="utf-8"), done.stdout), encoding="utf-8")


def _index() -> str:
    rows = []
    for rule in sorted(ALL_RULES, key=lambda rule: rule.id):
        cells = (f"[{rule.id}]({rule.id}.md)", rule.name, EFFECT_WORDS[rule.effect], rule.title())
        rows.append(f"| {' | '.join(cells)} |")
    limits = "What no rule finds, and what would: [limits.md](../limits.md)."
    head = (
        "# Rules",
        "",
        limits,
        "",
        "| id | name | effect | what it finds |",
        "|---|---|---|---|",
    )
    return "\n".join((*head, *rows, ""))


_OPERATORS = """# Operators in a capture

What CUDA graph capture does with PyTorch's operators, where the operator alone decides it. The rules, the
emulated device and the predictions read the same table: `graphdoctor/operators/table.json`. An operator
that the table does not list is not known to stand in a capture's way, and counts as one kernel.

*Measured* facts come from capturing the operator, as torch's own test inputs call it; *source* facts
were read in PyTorch's source and wait for such a measurement. A number such as 9/9 says how many of
the measured calls were refused.
"""


def _operators() -> str:
    table = load_table()
    hazards = [fact for fact in table.operators if fact.effect != "captured"]
    captured = [fact for fact in table.operators if fact.effect == "captured"]
    runs = [f"Measured on {run.gpu} with torch {run.torch}, {run.date}." for run in table.runs]
    head = (
        "| operator | effect | when | what it does | evidence | refused |",
        "|---|---|---|---|---|---|",
    )
    rows = [f"| {' | '.join(_cells(fact))} |" for fact in hazards]
    parts = [_OPERATORS, *(f"{run}\n" for run in runs), "## What prevents a capture\n"]
    parts.append("\n".join((*head, *rows, "")))
    if captured:
        words = ", ".join(f"`{fact.operator}`{_kernels(fact)}" for fact in captured)
        title = f"## Captured in every measured call: {len(captured)} operators"
        parts.append(f"{title}\n\nIn brackets: the kernels of one call.\n\n{words}\n")
    return "\n".join(parts)


def _cells(fact: OperatorFact) -> tuple[str, ...]:
    calls = fact.refused + fact.captured
    source = f" ({fact.source})" if fact.source else ""
    return (
        f"`{fact.operator}`",
        EFFECTS[fact.effect],
        CONDITIONS[fact.when].words,
        fact.why,
        f"{evidence_words(fact)}{source}",
        f"{fact.refused}/{calls}" if calls else "",
    )


def _kernels(fact: OperatorFact) -> str:
    if fact.kernels is None:
        return ""
    fewest, most = fact.kernels
    return f" ({fewest})" if fewest == most else f" ({fewest}-{most})"


def _text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8") if file.is_file() else None


if __name__ == "__main__":
    main()
    _write_demo()
