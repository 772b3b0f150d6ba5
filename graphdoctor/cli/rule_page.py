"""A rule -> its explanation, for a terminal and for the documentation."""

from __future__ import annotations

import inspect
import textwrap
from typing import TYPE_CHECKING

from graphdoctor.values.figures import EFFECT_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphdoctor.reporters.page import Page
    from graphdoctor.rules.rule import Rule


def write_page(page: Page, rule: Rule | type[Rule]) -> None:
    """The explanation as a page for a terminal."""
    page.line((f"{rule.id} {rule.name}", "bold"), (f"  {EFFECT_WORDS[rule.effect]}", "bold red"))
    page.paragraph(rule.title(), style="bold")
    page.blank()
    page.prose("Why   ", rule.explanation())
    page.blank()
    page.prose("Fix   ", inspect.cleandoc(rule.fix))
    page.blank()
    page.prose("Known ", f"{rule.evidence}.")
    for label, example in (("Bad", rule.bad), ("Good", rule.good)):
        page.heading(label)
        page.code(source(example), indent=2)


def markdown(rule: Rule | type[Rule]) -> str:
    """The explanation as a page of docs/rules/."""
    return "\n".join(
        (
            f"# {rule.id} {rule.name}",
            "",
            f"**{rule.title()}**",
            "",
            f"Effect: *{EFFECT_WORDS[rule.effect]}*. Evidence: {rule.evidence}.",
            "",
            rule.explanation(),
            "",
            "## Fix",
            "",
            inspect.cleandoc(rule.fix),
            "",
            "## Bad",
            "",
            *_fenced(source(rule.bad)),
            "",
            "## Good",
            "",
            *_fenced(source(rule.good)),
            "",
        )
    )


def source(example: Callable[[], object]) -> str:
    """An example's own code, without its decorator."""
    text = textwrap.dedent(inspect.getsource(example))
    return text.removeprefix("@staticmethod\n").rstrip()


def _fenced(code: str) -> tuple[str, ...]:
    return ("```python", code, "```")
