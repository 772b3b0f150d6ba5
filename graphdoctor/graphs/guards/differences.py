"""Values that a capture froze, before and now: whether the new one is as good, and what changed, in words."""

from __future__ import annotations

from collections import deque
from types import MethodType

import torch

from graphdoctor.graphs.calls.signature import is_constant
from graphdoctor.values.figures import shortened

HOLDERS = ("_parameters", "_buffers", "_modules")
NOTHING = object()


def joined(path: str, key: object) -> str:
    """The path of an attribute or an item."""
    name = f".{key}" if isinstance(key, str) else f"[{key!r}]"
    return f"{path}{name}".removeprefix(".")


def is_as_good(before: object, now: object) -> bool:
    """Whether no code can tell a value that is another object from the one before."""
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(before, tuple) and isinstance(now, tuple):
        return len(before) == len(now) and all(map(is_as_good, before, now))
    if isinstance(before, MethodType) and isinstance(now, MethodType):
        return before.__self__ is now.__self__ and before.__func__ is now.__func__
    return is_constant(before) and repr(before) == repr(now)


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
