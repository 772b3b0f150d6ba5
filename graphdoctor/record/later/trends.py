"""Python state over a few steps -> how it goes on, and a way to put it to where it will be."""

from __future__ import annotations

import io
import math
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from graphdoctor.record.later.places import put_at
from graphdoctor.target.state.attributes import (
    counts_for_itself,
)
from graphdoctor.target.state.kinds.written import dict_items
from graphdoctor.target.state.plain import STREAMS, inner_path, is_array
from graphdoctor.target.state.readers import readers_of
from graphdoctor.target.state.walk import Walk

_MOST_ITEMS = 20_000  # that a container gets, or that are compared
_MOST_DOUBLINGS = 60  # of what multiplies
_MOST_NUMBERS = 64  # that the state may be compared with


class Trend(NamedTuple):
    """One value: `advance(steps)` puts it to where it will be.

    `now` and `growth` are those of what counts; at `end` steps nothing is left of what is used up.
    """

    path: str
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
    """Put all of them to where they will be so many steps later."""
    for each in trends:
        each.advance(steps)


class _Held(NamedTuple):
    holder: object
    value: Any  # a number, or a copy of what a container or an array holds
    container: Any


Moment = dict[str, _Held]


def moment(roots: Mapping[str, object], paths: Container[str]) -> Moment:
    """What stands at these paths now."""
    found: Moment = {}
    for one in readers_of(roots, paths):
        found.setdefault(str(one.path), _Held(one.holder, _copied(one.value), one.value))
    return found


def trends(first: Moment, second: Moment, third: Moment) -> list[Trend]:
    """How what three steps in a row begin with goes on; without what changes in no way that is known."""
    found = []
    for path, held in first.items():
        if path in second and path in third:
            trend = _trend(path, held, second[path].value, third[path].value)
            found += [trend] if trend is not None else []
    return found


def numbers_in(roots: Mapping[str, object]) -> list[int]:
    """Whole numbers in the state, keys included: what is counted may be compared with them."""
    found: dict[int, None] = {}
    for _, value, shown in Walk(roots, with_empty=False):
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
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, array):
        return value.tobytes()
    if isinstance(value, STREAMS):
        return value.tell()
    return value.copy() if is_array(value) else value


def _trend(path: str, held: _Held, second: Any, third: Any) -> Trend | None:
    if isinstance(held.container, (list, deque)):
        return _of_items(path, held.container, held.value, second)
    if isinstance(held.container, (set, dict)):
        growth = second - held.value
        return _of_keys(path, held.container, held.value, growth) if growth > 0 else None
    is_own = isinstance(held.container, (bytearray, array))
    if isinstance(held.container, STREAMS):
        return _of_stream(path, held.container, (held.value, second, third))
    if isinstance(held.holder, (tuple, frozenset)) and not is_own:
        return None  # nobody can put anything into it
    put = (
        partial(_fill, held.container) if is_own else partial(put_at, held.holder, inner_path(path))
    )
    if isinstance(held.value, frozenset):
        return _of_frozen(path, (held.value, second, third), put)
    if isinstance(held.value, (str, bytes, tuple)):
        return _of_text(
            path, (held.value, second, third), put, getattr(held.container, "itemsize", 1)
        )
    goes_on = _going_on(held.value, second, third)
    if goes_on is None:
        return None
    counts = _counted(held.value, second, third)
    if is_array(held.container):
        return Trend(path, lambda steps: _fill(held.container, goes_on(steps)), *counts)
    return Trend(path, lambda steps: put_at(held.holder, path, goes_on(steps)), *counts)


def _counted(first: Any, second: Any, third: Any) -> tuple[float | None, float | None]:
    """A number and what each step adds, where that is the same; of an array, of the first item that changes."""
    if is_array(first):
        at = int((second != first).argmax())
        first, second, third = (value.flat[at] for value in (first, second, third))
    if isinstance(first, (Decimal, Fraction)) or third - second != second - first:
        return None, None
    return first.item() if hasattr(first, "item") else first, float(second - first)


def _going_on(first: Any, second: Any, third: Any) -> Callable[[int], Any] | None:
    """Adds the same each time, or comes nearer to something by the same part each time."""
    if not _are_numbers(first, second, third):
        return None
    one, two = second - first, third - second
    if is_array(first):
        return (lambda steps: first + one * steps) if one.any() and (one == two).all() else None
    if not one:
        return None
    if one == two or (isinstance(one, float) and math.isclose(one, two, rel_tol=1e-6)):
        return lambda steps: first + type(one)(steps) * one
    part = float(two) / float(one)
    if not math.isfinite(part) or part in (0.0, 1.0, -1.0) or isinstance(first, int):
        return None

    def geometric(steps: int) -> Any:
        steps = steps if abs(part) < 1 else min(steps, _MOST_DOUBLINGS)
        return type(first)(float(first) + float(one) * (1 - part**steps) / (1 - part))

    return geometric


def _are_numbers(*values: Any) -> bool:
    kind = type(values[0])
    if any(type(value) is not kind for value in values):
        return False
    if is_array(values[0]):
        shapes = {(value.shape, value.dtype.kind) for value in values}
        return len(shapes) == 1 and values[0].dtype.kind in "iuf" and values[0].size > 0
    numpy = sys.modules.get("numpy")
    is_numpys = numpy is not None and issubclass(kind, numpy.number)
    return is_numpys or kind in (int, float, Decimal, Fraction)


def _fill(held: Any, values: Any) -> None:
    if isinstance(held, (bytearray, array)):
        with suppress(BufferError):  # somebody looks into it
            held[:] = array(held.typecode, values) if isinstance(held, array) else values
    elif held.flags.writeable:
        held[...] = values.astype(held.dtype)


def _of_keys(path: str, held: set[object] | dict[object, object], now: int, growth: int) -> Trend:
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


def _of_text(
    path: str, moments: tuple[Any, Any, Any], put: Callable[[Any], None], unit: int
) -> Trend | None:
    """A text, bytes or a tuple, to whose end each step adds as much; what comes is like what came first."""
    first, second, third = moments
    if not type(first) is type(second) is type(third):
        return None
    more = second[len(first) :]
    is_growing = second[: len(first)] == first and third[: len(second)] == second
    if not more or not is_growing or len(third) - len(second) != len(more):
        return None
    most = _MOST_ITEMS // len(more)
    now, growth = len(first) // unit, len(more) // unit
    return Trend(path, lambda steps: put(first + more * min(steps, most)), now, growth)


def _of_frozen(
    path: str, moments: tuple[Any, Any, Any], put: Callable[[Any], None]
) -> Trend | None:
    """A frozen set that is replaced by one of as many more."""
    first, second, third = moments
    growth = len(second) - len(first)
    if growth <= 0 or len(third) - len(second) != growth:
        return None

    def advance(steps: int) -> None:
        put(first | {object() for _ in range(min(steps * growth, _MOST_ITEMS))})

    return Trend(path, advance, len(first), growth)


def _of_stream(path: str, held: Any, moments: tuple[int, int, int]) -> Trend | None:
    """A stream in memory that is written on."""
    first, second, third = moments
    growth = second - first
    if growth <= 0 or third - second != growth:
        return None
    kind, mark = (io.BytesIO, b" ") if isinstance(held, io.BytesIO) else (io.StringIO, " ")

    def advance(steps: int) -> None:
        kind.write(held, mark * (first + steps * growth - kind.tell(held)))  # type: ignore[arg-type]

    return Trend(path, advance, first, growth)


def _of_items(
    path: str, held: list[object] | deque[object], now: list[object], then: list[object]
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
