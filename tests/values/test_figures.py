"""Counts as words, and text that is cut."""

from __future__ import annotations

import pytest

from graphdoctor.values.figures import count_text, shortened
from graphdoctor.values.locations import Location, file_line, line_of, with_place


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "launch", "1 launch"),
        (0, "launch", "0 launches"),
        (12_000, "operator", "12,000 operators"),
        (2, "entry", "2 entries"),
        (3, "delay", "3 delays"),
        (2, "graph break", "2 graph breaks"),
        (2, "class", "2 classes"),
    ],
)
def test_a_count_has_its_noun_in_the_right_number(count: int, noun: str, text: str) -> None:
    assert count_text(count, noun) == text


def test_only_long_text_is_shortened_and_then_to_the_length_that_is_allowed() -> None:
    assert shortened("x" * 60) == "x" * 60
    assert shortened("x" * 61) == "x" * 57 + "..."
    assert shortened("abcdef", most=5) == "ab..."


def test_a_line_is_named_without_the_folders_of_this_machine() -> None:
    place = Location("/home/someone/models/train.py", 31)
    assert file_line(place) == "train.py:31"
    assert line_of(place) == "line 31 of train.py"
    assert with_place("it waits. ", place) == "it waits in line 31 of train.py"
    assert with_place("it waits.", None) == "it waits"
