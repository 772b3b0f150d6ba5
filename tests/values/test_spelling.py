"""The names that were most likely meant."""

from __future__ import annotations

from graphdoctor.values.spelling import alike, meant, nearest

KNOWN = ("analyze", "baseline", "check", "explain", "report", "rules")


def test_nearest_is_always_one_of_them() -> None:
    assert nearest("chekc", KNOWN) == "check"
    assert nearest("REPORT", KNOWN) == "report"
    assert nearest("zzz", KNOWN) in KNOWN


def test_of_equally_similar_ones_the_one_that_begins_alike_is_nearest() -> None:
    assert nearest("ab", ("xb", "ax")) == "ax"


def test_alike_are_the_most_similar_ones_first_and_no_others() -> None:
    assert alike("reports", KNOWN, most=3)[0] == "report"
    assert alike("rule", ("rules", "rule-page", "check"), most=3) == ["rules", "rule-page"]
    assert alike("rule", ("rules", "rule-page", "check"), most=1) == ["rules"]
    assert alike("zzz", KNOWN, most=3) == []
    assert alike("", KNOWN, most=3) == []


def test_meant_ends_a_sentence_only_where_something_is_alike() -> None:
    assert meant("analize", KNOWN) == "; did you mean 'analyze'?"
    assert meant("zzz", KNOWN) == ""
    assert meant("x", ()) == ""
