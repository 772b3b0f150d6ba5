"""Python state over three steps: how it continues, and a way to set it to where it will be."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from graphdoctor.target.state.attributes import counts_for_itself, is_array
from graphdoctor.target.state.kinds import kind_of
from graphdoctor.target.state.kinds.kind import dict_items
from graphdoctor.target.state.paths import StatePath
from graphdoctor.target.state.snapshot import readers_of
from graphdoctor.target.state.walk import Walk

_MOST_ITEMS = 20_000  # that a container gets, or that are compared
_MOST_DOUBLINGS = 60  # of a number that is multiplied in each step
_MOST_NUMBERS = 64  # that the state may be compared with


class Trend(NamedTuple):
    """One value that continues: `advance(steps)` sets it to where it will be.

    `now` and `growth` are its number, or its length; after `end` steps nothing is left of it.
    """

    path: StatePath
    advance: Callable[[int], None]
    now: int | float | None = None
    growth: int | float | None = None
    end: int | None = None

    def until(self, number: int) -> Iterator[int]:
        """After how many steps it is this number, if ever."""
        if self.now is None or not self.growth:
            return
        steps = (number - self.now) / self.growth
        if steps > 0 and steps == int(steps):
            yield int(steps)


def advance(trends: Iterable[Trend], steps: int) -> None:
    """Set all of them to where they will be so many steps later."""
    for each in trends:
        each.advance(steps)


class _Held(NamedTuple):
    holder: object
    value: Any  # a number, or a copy of what a container or an array holds
    container: Any


Moment = dict[StatePath, _Held]


def moment(roots: Mapping[str, object], paths: Container[str]) -> Moment:
    """The values at these paths now."""
    found: Moment = {}
    for one in readers_of(roots, paths):
        found.setdefault(one.path, _Held(one.holder, _copied(one.value), one.value))
    return found


def trends(first: Moment, second: Moment, third: Moment) -> list[Trend]:
    """What continues as it did before three steps in a row: numbers, and containers by their length."""
    found = []
    for path, held in first.items():
        if path in second and path in third:
            trend = _trend(path, held, second[path].value, third[path].value)
            found += [trend] if trend is not None else []
    return found


def numbers_in(roots: Mapping[str, object]) -> list[int]:
    """Whole numbers in the state, keys included: a counter may be compared with them."""
    found: dict[int, None] = {}
    for _, value, shown in Walk(roots):
        if shown and isinstance(value, deque) and value.maxlen is not None:
            found.setdefault(value.maxlen)
        elif shown and isinstance(value, dict) and not counts_for_itself(value):
            found.update((key, None) for key, _ in dict_items(value) if type(key) is int)
        elif shown and type(value) is int:
            found.setdefault(value)
    return list(islice(found, _MOST_NUMBERS))


def _copied(value: Any) -> Any:
    if isinstance(value, (list, deque)):
        return list(islice(value, _MOST_ITEMS))
    if isinstance(value, (set, dict)):
        return len(value)
    return value.copy() if is_array(value) else value


def _trend(path: StatePath, held: _Held, second: Any, third: Any) -> Trend | None:
    if isinstance(held.container, (list, deque)):
        return _of_items(path, held.container, held.value, second)
    if isinstance(held.container, (set, dict)):
        growth = second - held.value
        return _of_keys(path, held.container, held.value, growth) if growth > 0 else None
    if isinstance(held.holder, (tuple, frozenset)):
        return None  # nothing can be assigned there
    if is_array(held.container):
        return _of_array(path, held, second, third)
    first = held.value
    if type(first) not in (int, float) or not type(first) is type(second) is type(third):
        return None
    continued = _continued(first, second, third)
    if continued is None:
        return None
    is_even = third - second == second - first
    counts = (first, float(second - first)) if is_even else (None, None)
    kind = kind_of(held.holder)
    return Trend(path, lambda steps: kind.write(held.holder, path, continued(steps)), *counts)


def _continued(first: Any, second: Any, third: Any) -> Callable[[int], Any] | None:
    """Adds the same each time, or is multiplied by the same factor each time."""
    one, two = second - first, third - second
    if not one:
        return None
    if one == two or (isinstance(one, float) and math.isclose(one, two, rel_tol=1e-6)):
        return lambda steps: first + type(one)(steps) * one
    part = float(two) / float(one)
    if not math.isfinite(part) or part in (0.0, 1.0, -1.0) or isinstance(first, int):
        return None

    def geometric(steps: int) -> Any:
        steps = steps if abs(part) < 1 else min(steps, _MOST_DOUBLINGS)
        return float(first) + float(one) * (1 - part**steps) / (1 - part)

    return geometric


def _of_array(path: StatePath, held: _Held, second: Any, third: Any) -> Trend | None:
    """A NumPy array of numbers to which each step adds the same; it counts by its first item that changes."""
    first, array = held.value, held.container
    shapes = {(value.shape, value.dtype.kind) for value in (first, second, third)}
    if len(shapes) != 1 or first.dtype.kind not in "iuf" or not array.flags.writeable:
        return None
    one = second - first
    if not one.any() or not (one == third - second).all():
        return None
    at = int((second != first).argmax())

    def advance(steps: int) -> None:
        array[...] = (first + one * steps).astype(array.dtype)

    return Trend(path, advance, first.flat[at].item(), float(one.flat[at]))


def _of_keys(
    path: StatePath, held: set[object] | dict[object, object], now: int, growth: int
) -> Trend:
    """A set or a dictionary that gets so many more keys, which are equal to no other; with the last one's value."""

    def advance(steps: int) -> None:
        more = [object() for _ in range(min(steps * growth, _MOST_ITEMS))]
        if isinstance(held, set):
            set.update(held, more)
            return
        last, ordered = next(reversed(dict.values(held)), None), isinstance(held, OrderedDict)
        for key in more:
            (OrderedDict if ordered else dict).__setitem__(held, key, last)

    return Trend(path, advance, now, growth)


def _of_items(
    path: StatePath, held: list[object] | deque[object], now: list[object], then: list[object]
) -> Trend | None:
    """A list or a deque that grows or shrinks at one of its ends."""
    growth = len(then) - len(now)
    kind: Any = list if isinstance(held, list) else deque
    if not growth or not now or len(now) >= _MOST_ITEMS:
        return None
    shorter, longer = sorted((now, then), key=len)
    at_end = _same(longer[: len(shorter)], shorter)
    if not at_end and not _same(longer[len(longer) - len(shorter) :], shorter):
        return None

    def advance(steps: int) -> None:
        if growth > 0:
            more = [now[-1 if at_end else 0]] * min(steps * growth, _MOST_ITEMS)
            items = [*now, *more] if at_end else [*more, *now]
        else:
            left = max(-growth, len(now) + steps * growth)
            items = now[:left] if at_end else now[len(now) - left :]
        kind.clear(held)
        kind.extend(held, items)

    end = (len(now) - 1) // -growth if growth < 0 else None
    return Trend(path, advance, len(now), growth, end)


def _same(one: list[object], other: list[object]) -> bool:
    return all(here is there for here, there in zip(one, other, strict=True))
