"""Two sequences of operators -> the pairs of positions that are the same call."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Op

Pair = tuple[int | None, int | None]
_Key = tuple[str, Location | None, str, str]
_Span = tuple[int, int, int, int]  # first and end position in a, first and end position in b

# Both bounds keep the work linear: a span is searched for anchors at most this deep, and an edit
# script longer than this is not worth finding, because such stretches have nothing in common.
_MAX_DEPTH = 24
_MAX_EDITS = 256


def align(a: Sequence[Op], b: Sequence[Op]) -> tuple[Pair, ...]:
    """Pair up equal calls of two runs, in order; None stands for "only in the other run".

    Calls are equal when name, location, module and phase are. The time is linear in the number of
    operators; long stretches without resemblance stay unmatched.
    """
    numbers: dict[_Key, int] = {}
    keys_a = [numbers.setdefault(_key(op), len(numbers)) for op in a]
    keys_b = [numbers.setdefault(_key(op), len(numbers)) for op in b]
    if keys_a == keys_b:
        return tuple((position, position) for position in range(len(keys_a)))
    matches = sorted(_matches(keys_a, keys_b))
    return tuple(_with_unmatched(matches, len(keys_a), len(keys_b)))


def _key(op: Op) -> _Key:
    return op.name, op.location, op.module, op.phase


def _with_unmatched(matches: list[tuple[int, int]], len_a: int, len_b: int) -> Iterator[Pair]:
    next_a = next_b = 0
    for i, j in [*matches, (len_a, len_b)]:
        yield from ((only, None) for only in range(next_a, i))
        yield from ((None, only) for only in range(next_b, j))
        if i < len_a:
            yield i, j
        next_a, next_b = i + 1, j + 1


def _matches(a: list[int], b: list[int]) -> Iterator[tuple[int, int]]:
    """Matched positions, in any order: ends first, then anchors, then what lies between them."""
    todo: list[tuple[_Span, int]] = [((0, len(a), 0, len(b)), 0)]
    while todo:
        span, depth = todo.pop()
        low_a, high_a, low_b, high_b = span
        while low_a < high_a and low_b < high_b and a[low_a] == b[low_b]:
            yield low_a, low_b
            low_a, low_b = low_a + 1, low_b + 1
        while low_a < high_a and low_b < high_b and a[high_a - 1] == b[high_b - 1]:
            high_a, high_b = high_a - 1, high_b - 1
            yield high_a, high_b
        if low_a == high_a or low_b == high_b:
            continue
        span = (low_a, high_a, low_b, high_b)
        anchors = _anchors(a, b, span) if depth < _MAX_DEPTH else []
        if not anchors:
            yield from _shortest_edit(a, b, span)
            continue
        yield from anchors
        todo += [(gap, depth + 1) for gap in _between(anchors, span)]


def _between(anchors: list[tuple[int, int]], span: _Span) -> Iterator[_Span]:
    low_a, high_a, low_b, high_b = span
    for i, j in [*anchors, (high_a, high_b)]:
        yield low_a, i, low_b, j
        low_a, low_b = i + 1, j + 1


def _anchors(a: list[int], b: list[int], span: _Span) -> list[tuple[int, int]]:
    """The longest run of pairs, rising in both, among keys that occur once on either side."""
    low_a, high_a, low_b, high_b = span
    count_a, count_b = Counter(a[low_a:high_a]), Counter(b[low_b:high_b])
    place_b = {b[j]: j for j in range(low_b, high_b)}
    pairs = [
        (i, place_b[a[i]])
        for i in range(low_a, high_a)
        if count_a[a[i]] == 1 and count_b[a[i]] == 1
    ]
    return _longest_rising(pairs)


def _longest_rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence whose second members rise (patience sorting)."""
    tops: list[int] = []  # smallest second member that ends a rising run of each length
    top_at: list[int] = []
    before: list[int] = []
    for at, (_, j) in enumerate(pairs):
        length = bisect_left(tops, j)
        before.append(top_at[length - 1] if length else -1)
        tops[length : length + 1] = [j]
        top_at[length : length + 1] = [at]
    chain = []
    at = top_at[-1] if top_at else -1
    while at >= 0:
        chain.append(pairs[at])
        at = before[at]
    return chain[::-1]


def _shortest_edit(a: list[int], b: list[int], span: _Span) -> Iterator[tuple[int, int]]:
    """Myers' greedy search, for repeated keys (loops); past the bound nothing is matched."""
    low_a, high_a, low_b, high_b = span
    len_a, len_b = high_a - low_a, high_b - low_b
    reach = {1: 0}  # furthest position in a on each diagonal (position in a minus position in b)
    history: list[dict[int, int]] = []
    for edits in range(min(len_a + len_b, _MAX_EDITS) + 1):
        history.append(dict(reach))
        for diagonal in range(-edits, edits + 1, 2):
            x = _entry(reach, diagonal, edits)
            y = x - diagonal
            while x < len_a and y < len_b and a[low_a + x] == b[low_b + y]:
                x, y = x + 1, y + 1
            reach[diagonal] = x
            if x >= len_a and y >= len_b:
                for i, j in _walk_back(history, len_a, len_b):
                    yield low_a + i, low_b + j
                return


def _takes_b(reach: dict[int, int], diagonal: int, edits: int) -> bool:
    """Whether this diagonal is entered by passing over an element of b, and not of a."""
    return diagonal == -edits or (diagonal != edits and reach[diagonal - 1] < reach[diagonal + 1])


def _entry(reach: dict[int, int], diagonal: int, edits: int) -> int:
    if _takes_b(reach, diagonal, edits):
        return reach[diagonal + 1]
    return reach[diagonal - 1] + 1


def _walk_back(history: list[dict[int, int]], x: int, y: int) -> Iterator[tuple[int, int]]:
    """The matches on the path that led to (x, y), last first."""
    for edits in range(len(history) - 1, -1, -1):
        reach, diagonal = history[edits], x - y
        entry = _entry(reach, diagonal, edits)
        while x > entry:
            x, y = x - 1, y - 1
            yield x, y
        if _takes_b(reach, diagonal, edits):
            y -= 1
        else:
            x -= 1
