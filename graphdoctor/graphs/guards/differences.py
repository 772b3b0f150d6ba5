"""A value that a capture froze, then and now -> whether one is as good as the other, and what changed, in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch

from graphdoctor.graphs.calls.signature import is_constant
from graphdoctor.graphs.guards.paths import joined
from graphdoctor.values.figures import shortened

NOTHING = object()


def difference(path: str, live: Any, saved: Any) -> str:
    if _is_equal(live, saved):
        return ""
    if _is_shown_whole(live) and _is_shown_whole(saved):
        return changed(path, type(live)(saved), live)
    for key, before, now in _entries(live, saved):
        if not is_as_good(before, now) and not _is_equal_container(before, now):
            return changed(joined(path, key), before, now)
    return f"{path} changed"


def _is_equal(live: Any, saved: Any) -> bool:
    """By `==`, and keys and items cannot be told from those before; what they lead to is looked at by itself."""
    try:
        if live != saved:
            return False
    except Exception:  # a tensor took another's place
        return False
    if isinstance(saved, set):
        return sorted(map(_told, live)) == sorted(map(_told, saved))
    # The values of a dictionary are looked at by themselves.
    return not isinstance(live, (list, deque, dict)) or all(map(is_as_good, saved, live))


def _told(value: object) -> str:
    return f"{type(value)} {value!r}"


def _entries(live: Any, saved: Any) -> Iterator[tuple[object, object, object]]:
    if isinstance(saved, dict):
        for key in dict.fromkeys((*saved, *live)):
            yield key, saved.get(key, NOTHING), live.get(key, NOTHING)
    elif isinstance(saved, (list, deque)) and len(live) == len(saved):
        for index, (before, now) in enumerate(zip(saved, live, strict=True)):
            yield index, before, now


def is_as_good(before: object, now: object) -> bool:
    """Whether a value that is another object cannot be told from the one before."""
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(before, tuple) and isinstance(now, tuple):
        return len(before) == len(now) and all(map(is_as_good, before, now))
    if isinstance(before, MethodType) and isinstance(now, MethodType):
        return before.__self__ is now.__self__ and before.__func__ is now.__func__
    return is_constant(before) and repr(before) == repr(now)


def _is_equal_container(before: object, now: object) -> bool:
    """A container in another's place is looked at by itself, with the exact entries."""
    try:
        return type(before) is type(now) in (list, dict, set, deque) and before == now
    except Exception:  # a tensor took another's place
        return False


def changed(path: str, before: object, now: object) -> str:
    if _is_object(before) and type(before) is type(now):
        return f"{path} is another object than the captured one"
    return f"{path} changed from {_short(before)} to {_short(now)}"


def _is_object(value: object) -> bool:
    return value is not NOTHING and not is_constant(value) and not _is_shown_whole(value)


def _is_shown_whole(value: object) -> bool:
    return type(value) in (list, tuple, set, deque) and all(map(is_constant, value))  # type: ignore[call-overload]


def _short(value: object) -> str:
    if value is NOTHING:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"one tensor of {tuple(value.shape)}"
    if _is_object(value):
        return f"one {type(value).__name__}"
    return shortened(repr(value))
