"""Functions and classes of Python's and torch's, replaced for a while in all that knows them by a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from graphdoctor.target.state.walk import Walk
from graphdoctor.target.user_code import is_user_file


@contextmanager
def standing_in(
    roots: Mapping[str, object], others: Mapping[int, object], *modules: ModuleType
) -> Iterator[None]:
    """In this block code that the roots lead to finds others in place of objects, given by their identity.

    `modules` are those in which the objects live.
    """
    spaces: list[dict[str, Any]] = [vars(module) for module in modules]
    for _, value, _ in Walk(roots, with_empty=False):
        if isinstance(value, FunctionType) and is_user_file(value.__code__.co_filename):
            spaces.append(value.__globals__)
    changed: list[tuple[dict[str, Any], str, object]] = []
    try:
        for space in spaces:
            for name, value in list(space.items()):
                if (put := others.get(id(value))) is not None:
                    changed.append((space, name, value))
                    space[name] = put
        yield
    finally:
        for space, name, value in changed:
            space[name] = value
