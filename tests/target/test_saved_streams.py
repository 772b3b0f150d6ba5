"""Streams in memory stand where they stood, whatever a subclass or the translation of newlines makes of a write."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from graphdoctor.target.state.snapshot import snapshot


class _Counting(io.StringIO):
    """Counts what is written to it."""

    count = 0

    def write(self, text: str) -> int:
        self.count += 1
        return super().write(text)


class _Forward(io.BytesIO):
    """Only goes forward."""

    def seek(self, *args: Any) -> int:
        raise OSError("only forward")


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (io.BytesIO(b"abc"), b"longer"),
        (io.StringIO("a\nb", newline="\r\n"), "longer"),
        (_Counting("abc"), "longer"),
        (_Forward(b"abc"), b"longer"),
    ],
)
def test_a_stream_is_left_as_it_was_where_the_step_raises(stream: Any, text: Any) -> None:
    stream.read(1)
    before = (stream.tell(), stream.getvalue(), dict(vars(stream)))
    with (
        pytest.raises(KeyError),
        snapshot({"held": SimpleNamespace(stream=stream)}).around(),
    ):
        stream.write(text)
        raise KeyError
    assert (stream.tell(), stream.getvalue(), dict(vars(stream))) == before
