"""`graphdoctor explain`: rules are found by id or name, and shown as they are documented."""

from __future__ import annotations

import pytest

from graphdoctor.cli import main
from graphdoctor.cli.explain import find
from graphdoctor.rules import ALL_RULES
from graphdoctor.values.errors import UsageError


def test_list_has_every_rule_and_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {rule.id}  {rule.name} " in out for rule in ALL_RULES)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.id)
def test_rule_is_explained_with_both_examples(rule, capsys) -> None:
    assert main(["explain", rule.name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{rule.id} {rule.name}  ")
    assert " ".join(rule.title().split()) in " ".join(out.split())
    bad, good = out.split("Good \u2500")
    if rule.effect != "replay-is-slow":
        assert f"# <- {rule.id}" in bad
    assert "<- GD" not in good
    assert "def bad()" in bad
    assert "def good()" in good


@pytest.mark.parametrize("wanted", ["GD101", "gd101", "host-read", " Host-Read "])
def test_rule_is_found_by_id_or_name(wanted: str) -> None:
    assert [rule.id for rule in find(ALL_RULES, wanted)] == ["GD101"]


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("GD999", "did you mean GD"),
        ("host-raed", "did you mean GD101 host-read"),
        ("sycnhro", "did you mean 'synchronizes'?"),
        ("nosuch", "`graphdoctor rules` lists all rules"),
        ("zzz", "`graphdoctor rules` lists all rules"),
        ("", "`graphdoctor rules` lists all rules"),
    ],
)
def test_unknown_rule_gets_close_matches(wanted: str, hint: str, capsys) -> None:
    with pytest.raises(UsageError, match=f"there is no rule '{wanted}'") as caught:
        find(ALL_RULES, wanted)
    assert hint in str(caught.value)
    assert main(["explain", wanted]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("wanted", ["printing", "Tensor-Print", "gd102", "102"])
def test_a_part_that_one_rule_has_is_enough(wanted: str) -> None:
    assert [rule.name for rule in find(ALL_RULES, wanted)] == ["tensor-printing"]


def test_a_part_of_several_rules_names_them() -> None:
    with pytest.raises(UsageError, match="is a part of 2 rules: GD101 host-read, GD112 grad-scal"):
        find(ALL_RULES, "read")
    with pytest.raises(UsageError, match=r"is a part of \d+ rules: GD101 .* and \d+ more$"):
        find(ALL_RULES, "gd")


@pytest.mark.parametrize(
    ("word", "rule"),
    [("item", "GD101"), ("ITEM", "GD101"), (".item", "GD101"), ("pinned", "GD104")],
)
def test_a_word_finds_the_rule_that_speaks_most_of_it(word: str, rule: str, capsys) -> None:
    assert find(ALL_RULES, word)[0].id == rule
    assert main(["explain", word]) == 0
    out = capsys.readouterr().out
    assert out.startswith(rule)
    if len(find(ALL_RULES, word)) > 1:
        assert f"Also about {word}: GD" in out


@pytest.mark.parametrize("wanted", ["aten.nonzero.default", "aten::nonzero", "torch.nonzero()"])
def test_a_rule_is_found_by_the_name_that_a_report_gives_an_operator(wanted: str) -> None:
    assert find(ALL_RULES, wanted)[0].name == "data-dependent-shape"
