"""Paths of values in the state -> what holds each, what it is, and a way to look again without a walk."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from graphdoctor.target.state.attributes import counts_for_itself
from graphdoctor.target.state.plain import SCALARS, stands_for
from graphdoctor.target.state.walk import Visit, Walk


class Reader(NamedTuple):
    """A value by its path. `now` stands for it, as `again` does when it is called."""

    path: str
    holder: object
    value: object
    now: object
    again: Callable[[], object]
    cost: int  # how many values a look goes through


def readers_of(roots: Mapping[str, object], paths: Container[str]) -> Iterator[Reader]:
    """For each of these paths; none for what torch's own classes keep."""
    walk = Walk(roots, with_empty=False)
    for visit in walk:
        if isinstance(visit.value, SCALARS) or counts_for_itself(visit.value):
            continue
        children = list(walk.children(visit))
        for child in children:
            found = stands_for(child.path, child.value)
            if found is not None and found[0] in paths:
                again = partial(_again, walk, visit, found[0])
                yield Reader(found[0], visit.value, child.value, found[1], again, len(children))


def _again(walk: Walk, holder: Visit, path: str) -> object:
    seen = (stands_for(child.path, child.value) for child in walk.children(holder))
    return next((found[1] for found in seen if found is not None and found[0] == path), None)
