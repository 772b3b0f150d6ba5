"""`graphdoctor rules`: every rule in a line, for people and for grep."""

from __future__ import annotations

import argparse

from graphdoctor.cli.output import show


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
