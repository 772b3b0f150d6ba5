"""The last part of a trace file -> where its list of events ends."""

from __future__ import annotations

import msgspec

from graphdoctor.trace.read.decode import repair

_MOST_LISTS = 64


def end_of_list(text: bytes) -> int | None:
    """Where the list of events ends in the last part of a whole file; None if it does not.

    What follows it are a few fields, some with lists of their own: it is the last "]" with
    whole events before it and a whole object after it.
    """
    place, is_sure = _list_end(text)
    if is_sure:
        return place
    repaired = repair(text)
    place, _ = _list_end(repaired)
    return None if place is None else _same_place(text, repaired, place)


def _list_end(text: bytes) -> tuple[int | None, bool]:
    """The likely end, and whether what is before it is whole as well."""
    likely, end = None, len(text)
    for _ in range(_MOST_LISTS):
        end = text.rfind(b"]", 0, end)
        if end < 0:
            break
        if not is_json(b'{"": [' + text[end:]):
            continue
        if is_json(b"[" + text[:end] + b"]"):
            return end, True
        likely = end if likely is None else likely
    return likely, False


def _same_place(text: bytes, repaired: bytes, end: int) -> int:
    """The place in the text as it was; a repair may have changed its length before the list's end."""
    return max(0, len(text) - (len(repaired) - end))


def is_json(text: bytes) -> bool:
    """Whether the whole text is one JSON value."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True
