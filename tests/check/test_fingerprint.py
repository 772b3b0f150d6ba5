"""A finding is known again by rule, path and the code of its line."""

from __future__ import annotations

from pathlib import Path

from graphdoctor.check.baseline import Key, keys_of
from graphdoctor.values.locations import Excerpt
from tests.support.checking import finding


def test_the_first_of_equal_lines_has_the_ordinal_that_a_key_has_by_itself(tmp_path: Path) -> None:
    same = [finding(line, source="loss.item()") for line in (9, 4)]
    later, first = keys_of(same, root=tmp_path, otherwise="net")
    assert first == Key("models/net.py", "GD101", "loss.item()")
    assert later == Key("models/net.py", "GD101", "loss.item()", 2)
    assert len({first.fingerprint, later.fingerprint}) == 2


def test_a_line_outside_of_its_excerpt_is_read_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.py").write_text("one\ntwo\nthree()\n", encoding="utf-8")
    for excerpt in (Excerpt(1, ("one", "two")), Excerpt(4, ("four",))):
        beside = finding(3, excerpt=excerpt)
        (key,) = keys_of([beside], root=tmp_path, otherwise="net")
        assert key.source == "three()"


def test_the_last_line_of_an_excerpt_is_taken_from_it(tmp_path: Path) -> None:
    (key,) = keys_of(
        [finding(3, excerpt=Excerpt(2, ("two", "three()")))], root=tmp_path, otherwise="net"
    )
    assert key.source == "three()"
