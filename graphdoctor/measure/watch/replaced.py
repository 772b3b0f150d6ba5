"""Methods of a class or module -> ours in their place, and taken out again where nobody put others over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, ours: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """In the block, these stand in the place of the owner's."""
    was = {name: vars(owner).get(name) for name in ours}
    for name, method in ours.items():
        setattr(owner, name, method)
    try:
        yield
    finally:
        for name, method in ours.items():
            if vars(owner).get(name) is not method:
                continue  # the program has put its own over it, which calls ours
            if was[name] is None:
                delattr(owner, name)
            else:
                setattr(owner, name, was[name])
