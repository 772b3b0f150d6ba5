"""`graphdoctor explain RULE` and `graphdoctor rules`: what the rules report, in full or a line each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from graphdoctor.cli.output import add_color_argument, look_of, show
from graphdoctor.values.errors import UsageError
from graphdoctor.values.escape import visible
from graphdoctor.values.spelling import alike, meant

if TYPE_CHECKING:
    from graphdoctor.reporters.page import Page
    from graphdoctor.rules.rule import Rule


_NAMED = 4
_SURE = 0.6  # there are many words


class ExplainCommand:
    """Say what a rule means, with bad and good code; without ID, list the rules."""

    name = "explain"
    help = "explain a rule"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "rule",
            metavar="ID",
            nargs="?",
            help="GD101, a name such as host-read, a part of one, or a word such as item",
        )
        add_color_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        from graphdoctor.reporters.page import Page
        from graphdoctor.rules import ALL_RULES

        page = Page(look_of(args))
        if args.rule is None:
            _list(page, ALL_RULES)
        else:
            rule, *others = find(ALL_RULES, args.rule)
            write_page(page, rule)
            if others:
                page.blank()
                page.paragraph(f"Also about {visible(args.rule)}: {_named(others)}.", style="dim")
        show(page.render())
        return 0


def find(rules: Sequence[Rule | type[Rule]], wanted: str) -> list[Rule | type[Rule]]:
    """The rule of that id or name, or the only one with that in it; else those that speak of it.

    The one that is most about it comes first. Raises UsageError where there is none, or where it is
    a part of several rules' names.
    """
    by_key = {key: rule for rule in rules for key in (rule.id.lower(), rule.name.lower())}
    key = wanted.strip().lower()
    if key in by_key:
        return [by_key[key]]
    holding = list(dict.fromkeys(rule for one, rule in by_key.items() if key and key in one))
    if len(holding) == 1:
        return holding
    if holding:
        raise UsageError(f"{wanted!r} is a part of {len(holding)} rules: {_named(holding)}")
    speaking = _speaking_of(rules, key) or _speaking_of(rules, _function_of(key))
    if speaking:
        return speaking
    found = dict.fromkeys(by_key[one] for one in alike(key, by_key, most=3))
    hint = f"; did you mean {_named(found)}?" if found else meant(key, _words(rules), least=_SURE)
    raise UsageError(
        f"there is no rule {wanted!r}{hint or '; `graphdoctor rules` lists all rules'}"
    )


def _function_of(operator: str) -> str:
    """The name in `aten.nonzero.default`, `aten::nonzero` and `torch.nonzero()`; "" where there is none."""
    import re

    found = re.fullmatch(r"(?:aten|torch)(?:\.|::)(\w+)(?:\.\w+)?(?:\(\))?", operator)
    return found[1] if found else ""


def _words(rules: Sequence[Rule | type[Rule]]) -> set[str]:
    """What `find` would find rules by: words of their titles and fixes, without endings such as `()`."""
    import re

    texts = (text.lower() for rule in rules for text in (rule.title(), rule.fix))
    return {word for text in texts for word in re.findall(r"[a-z_]{4,}", text)}


def _speaking_of(rules: Sequence[Rule | type[Rule]], word: str) -> list[Rule | type[Rule]]:
    """A word of the title says most about a rule, then one of the fix, then one of the rest."""
    import re

    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)

    def score(rule: Rule | type[Rule]) -> int:
        texts = (rule.title(), rule.fix, rule.explanation(), source(rule.bad))
        weights = (4, 2, 1, 1)
        return sum(
            weight * len(pattern.findall(text)) for weight, text in zip(weights, texts, strict=True)
        )

    scores = {rule.id: score(rule) for rule in rules} if word else {}
    found = [rule for rule in rules if scores.get(rule.id)]
    return sorted(found, key=lambda rule: (-scores[rule.id], rule.id))


def _named(rules: Iterable[Rule | type[Rule]]) -> str:
    from graphdoctor.values.figures import first_of

    return first_of([f"{rule.id} {rule.name}" for rule in rules], _NAMED)


def _list(page: Page, rules: Sequence[Rule | type[Rule]]) -> None:
    from graphdoctor.values.finding import EFFECT_WORDS

    effect = None
    for rule in sorted(rules, key=lambda rule: rule.id):
        if rule.effect != effect:
            effect = rule.effect
            page.heading(EFFECT_WORDS[effect][:1].upper() + EFFECT_WORDS[effect][1:])
        page.hanging(f"  {rule.id}  {rule.name:<26}", rule.title(), head_style="bold")


def write_page(page: Page, rule: Rule | type[Rule]) -> None:
    """The explanation as a page for a terminal."""
    import inspect

    from graphdoctor.values.finding import EFFECT_WORDS

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
    import inspect

    from graphdoctor.values.finding import EFFECT_WORDS

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
    import inspect
    import textwrap

    text = textwrap.dedent(inspect.getsource(example))
    return text.removeprefix("@staticmethod\n").rstrip()


def _fenced(code: str) -> tuple[str, ...]:
    return ("```python", code, "```")


class RulesCommand:
    """List every rule in one line: id, name, effect, title, and how it is known."""

    name = "rules"
    help = "list all rules"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """It has none."""

    def run(self, args: argparse.Namespace) -> int:
        from graphdoctor.rules import ALL_RULES
        from graphdoctor.values.finding import EFFECT_WORDS

        rules = sorted(ALL_RULES, key=lambda rule: rule.id)
        names = max(len(rule.name) for rule in rules)
        effects = max(map(len, EFFECT_WORDS.values()))
        show(
            "".join(
                f"{rule.id}  {rule.name:<{names}}  {EFFECT_WORDS[rule.effect]:<{effects}}"
                f"  {rule.title()} [{' '.join(rule.evidence.split())}]\n"
                for rule in rules
            )
        )
        return 0
