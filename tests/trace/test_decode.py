"""Where the list of events ends in the last part of a file, whatever stands behind it."""

from __future__ import annotations

import pytest

from graphdoctor.trace.read.decode import end_of_list, is_json

EVENTS = b'{"a": 1}, {"b": [2, 3]}'


@pytest.mark.parametrize(
    "behind",
    [
        b"}",
        b', "more": 1}',
        b', "more": [1, [2]], "other": {"x": []}}',
        b', "text": "]", "more": []}',
        b"\n }\n",
    ],
)
@pytest.mark.parametrize("events", [EVENTS, b"", b'{"s": "]"}'])
def test_the_list_ends_before_the_fields_that_follow_it(events: bytes, behind: bytes) -> None:
    assert end_of_list(events + b"]" + behind) == len(events)


@pytest.mark.parametrize("text", [b"", EVENTS + b", ", b'{"b": [2, 3'])
def test_a_part_without_an_end_has_none(text: bytes) -> None:
    assert end_of_list(text) is None


def test_an_event_that_is_no_json_does_not_hide_the_end() -> None:
    """The last one that has whole fields behind it is likely."""
    broken = b'{"a": oops}, {"b": 2}'
    assert end_of_list(broken + b'], "more": 1}') == len(broken)


def test_the_place_is_that_in_the_file_also_where_a_number_had_to_be_repaired() -> None:
    events = b'{"a": NaN}, {"b": -Infinity}'
    assert end_of_list(events + b'], "more": 1}') == len(events)


@pytest.mark.parametrize(
    ("text", "whole"), [(b"[1]", True), (b"[1", False), (b"1 2", False), (b"", False)]
)
def test_a_text_is_json_where_it_is_one_value(text: bytes, whole: bool) -> None:
    assert is_json(text) is whole
