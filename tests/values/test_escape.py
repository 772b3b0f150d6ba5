"""Text from models is shown, and never obeyed."""

from __future__ import annotations

import pytest

from graphdoctor.values.escape import visible, visible_lines, with_texts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é and 漢", "plain, é and 漢"),
        ("\x1b[31mred\r\n", r"\x1b[31mred\r\n"),
        ("a\ud800b\u2028", r"a\ud800b\u2028"),
    ],
)
def test_what_a_terminal_would_obey_becomes_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_of_code_lines_and_tabs_stay() -> None:
    assert visible_lines("if x:\n\tprint('\x07')") == ["if x:", "    print('\\x07')"]


def test_every_text_of_a_value_is_changed_and_no_key() -> None:
    value = {"key": ["a", ("b", 1)], "other": None}
    assert with_texts(value, str.upper) == {"key": ["A", ["B", 1]], "other": None}
