"""`graphdoctor rules`: every rule, one line each, ready for grep."""

from __future__ import annotations

import pytest

from graphdoctor.cli import main
from graphdoctor.rules import ALL_RULES
from graphdoctor.values.finding import EFFECT_WORDS


def test_every_rule_has_one_line_with_all_that_a_choice_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rules = sorted(ALL_RULES, key=lambda rule: rule.id)
    assert len(lines) == len(rules)
    for line, rule in zip(lines, rules, strict=True):
        assert line.split()[:2] == [rule.id, rule.name]
        assert f"  {EFFECT_WORDS[rule.effect]}  " in f"{line}  "
        assert f"  {rule.title()} [" in line
        assert line.endswith(f"[{' '.join(rule.evidence.split())}]")
