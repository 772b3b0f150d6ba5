"""Dynamo's guards of many values, checked in one call into C++, without what Dynamo compiles."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

Check = Callable[[tuple[Any, ...]], bool]


def has_imported_dynamo() -> bool:
    """Whether its guards cost no import, which takes 1 to 2 s: a program with an optimizer has imported them."""
    return "torch._dynamo.guards" in sys.modules


def guards_of(values: tuple[Any, ...], guard: Callable[[Any, Any, Any], None]) -> Check | None:
    """A check of a tuple that has these values now. None if this torch has no such guards.

    `guard` gets the manager of each value, the value, and the kind of all managers. Imports torch._dynamo.
    """
    try:
        from torch._dynamo.guards import GuardManagerType

        root = torch._C._dynamo.guards.RootGuardManager()
        for place, value in enumerate(values):
            path, kind = f"L[{place}]", GuardManagerType.GUARD_MANAGER
            guard(root.tuple_getitem_manager(place, path, value, kind), value, kind)
        check: Check = root.check
        return check if check(values) else None
    except Exception:  # another torch's guards want other arguments
        return None


def add_guard(add: Any, expected: object) -> None:
    """Add a guard by a method of a manager.

    Some releases of torch take no third argument. A call that they refuse prints its arguments into its error, and
    so would read every tensor in them.
    """
    add(expected, [""], *([None] if "arg2" in (add.__doc__ or "") else []))
