"""Read values of the state again by their paths, without another walk."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from graphdoctor.target.state.attributes import counts_for_itself
from graphdoctor.target.state.kinds import digest, kind_of
from graphdoctor.target.state.kinds.kind import Visit
from graphdoctor.target.state.paths import StatePath
from graphdoctor.target.state.walk import Walk


class Reader(NamedTuple):
    """A value by its path. `now` stands for it, as `again` does when it is called."""

    path: StatePath
    holder: object
    value: object
    now: object
    again: Callable[[], object]
    cost: int  # how many values a look goes through


def readers_of(roots: Mapping[str, object], paths: Container[str]) -> Iterator[Reader]:
    """For each of these paths; none for what torch's own classes keep."""
    walk = Walk(roots, with_empty=False)
    for visit in walk:
        if kind_of(visit.value).is_scalar or counts_for_itself(visit.value):
            continue
        children = list(walk.children(visit))
        for child in children:
            found = digest(child.value)
            if found is not None and str(path := found.path_of(child.path)) in paths:
                again = partial(_again, walk, visit, path)
                yield Reader(path, visit.value, child.value, found.value, again, len(children))


def _again(walk: Walk, holder: Visit, path: StatePath) -> object:
    for child in walk.children(holder):
        if child.path == path.inner:
            found = digest(child.value)
            if found is not None and found.path_of(child.path) == path:
                return found.value
    return None
