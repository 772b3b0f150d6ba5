"""Chooses the sizes to capture graphs for, from the sizes that a program met and their times.

Each call takes the smallest captured size that it fits into, and pays for that whole size; what fits into
none runs eagerly. The best sizes are those of calls, so that a dynamic program over them is exact: the
cheapest k graphs up to a size are the cheapest k - 1 up to some smaller one, and one for all between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphdoctor.values.errors import UsageError
from graphdoctor.values.file_kinds import refuse_saved
from graphdoctor.values.sweep import Capturing, LengthPlan, SweepRow

MOST_SIZES = 1000  # that the program weighs; more are merged into the next larger one
LARGEST = 1_000_000
_SIZES = 8  # that are swept where a log alone says which
_CAPTURE_STEPS = 4  # three warm-ups and the capture, each about an eager step

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def read_lengths(path: str) -> Counter[int]:
    """How many calls had each size; one whole number a line. Raises UsageError for anything else."""
    refuse_saved(Path(path))
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The log of sizes {path} cannot be read: {error}") from error
    found: Counter[int] = Counter()
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= LARGEST):
            raise UsageError(
                f"Line {number} of {path} is no size: expected one whole number from 1 to"
                f" {LARGEST:,} a line, one line for each call."
            )
        found[int(text)] += 1
    if not found:
        raise UsageError(f"The log of sizes {path} is empty: expected one whole number a line.")
    return found


def sizes_to_sweep(lengths: Counter[int]) -> tuple[int, ...]:
    """Sizes from the smallest to the largest of a log, in equal steps of their logarithm."""
    steps = np.geomspace(float(min(lengths)), float(max(lengths)), _SIZES)
    return tuple(sorted({round(float(size)) for size in steps}))


def plan_lengths(
    lengths: Counter[int], rows: Sequence[SweepRow], *, most_graphs: int
) -> LengthPlan | None:
    """The sizes to capture, beside what is usual; None where no size could be captured."""
    times = _Times.of(rows)
    if times is None:
        return None
    calls = _Calls(lengths, times)
    chosen = calls.best(most_graphs)
    usual = [
        calls.of(name, sizes) for name, sizes in (("powers of two", powers_of_two(max(lengths))),
                                                  ("vLLM's default", of_vllm(max(lengths))))
    ]  # fmt: skip
    same = [calls.best(len(one.sizes)) for one in usual]
    return LengthPlan(
        calls=lengths.total(),
        shortest=min(lengths),
        longest=max(lengths),
        eager_us=calls.eager_us(),
        exact_us=calls.of("a graph for each size", sorted(lengths)).mean_us,
        chosen=chosen,
        beside=tuple(each for pair in zip(usual, same, strict=True) for each in pair),
        capture_us=float(sum(_CAPTURE_STEPS * times.eager(np.array(chosen.sizes)))),
        is_measured=all(row.status == "measured" for row in rows if row.graph_us is not None),
    )


def powers_of_two(longest: int) -> list[int]:
    """1, 2, 4 up to the first that the longest call fits into."""
    return [2**power for power in range((longest - 1).bit_length() + 1)]


def of_vllm(longest: int) -> list[int]:
    """vLLM's own list, up to what the longest call fits into.

    As its CompilationConfig documents `cudagraph_capture_sizes` (0.11 and newer), with the largest
    size of 512 that it takes by itself; longer calls run without a graph.
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 512 + 1, 16)]
    place = next((place for place, size in enumerate(sizes) if size >= longest), len(sizes) - 1)
    return sizes[: place + 1]


@dataclass(frozen=True, slots=True)
class _Times:
    """Times of one step by its size, in microseconds; between swept sizes in a straight line."""

    sizes: Floats
    graph_us: Floats
    eager_us: Floats

    @staticmethod
    def of(rows: Sequence[SweepRow]) -> _Times | None:
        known = [row for row in rows if row.graph_us is not None and row.eager_us is not None]
        if not known:
            return None
        return _Times(
            np.array([float(row.batch) for row in known]),
            np.array([row.graph_us.mid for row in known if row.graph_us is not None]),
            np.array([row.eager_us.mid for row in known if row.eager_us is not None]),
        )

    def graph(self, sizes: Floats) -> Floats:
        return _straight(sizes, self.sizes, self.graph_us)

    def eager(self, sizes: Floats) -> Floats:
        return _straight(sizes, self.sizes, self.eager_us)


def _straight(at: Floats, sizes: Floats, times: Floats) -> Floats:
    """Beyond the largest size that was swept the last two show the way; below the smallest, its time."""
    found = np.interp(at, sizes, times)
    if len(sizes) > 1:
        slope = max(0.0, (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]))
        found = np.where(at > sizes[-1], times[-1] + slope * (at - sizes[-1]), found)
    return np.asarray(found, dtype=np.float64)


class _Calls:
    """The calls of a log, by size, and what they would take with graphs of some sizes."""

    def __init__(self, lengths: Counter[int], times: _Times) -> None:
        self._sizes = np.array(sorted(lengths), dtype=np.float64)
        self._counts = np.array([lengths[int(size)] for size in self._sizes], dtype=np.float64)
        self._total = float(self._counts.sum())
        self._times = times

    def eager_us(self) -> float:
        return float((self._counts * self._times.eager(self._sizes)).sum() / self._total)

    def of(self, name: str, captured: Sequence[int]) -> Capturing:
        """What these sizes cost, and how much of the work is padding."""
        sizes = np.array(sorted(captured), dtype=np.float64)
        place = np.searchsorted(sizes, self._sizes)
        fits = place < len(sizes)
        padded = np.where(fits, sizes[np.minimum(place, len(sizes) - 1)], self._sizes)
        graph, eager = self._times.graph(padded), self._times.eager(self._sizes)
        took = np.where(fits, graph, eager)
        used = np.bincount(place[fits], weights=self._counts[fits], minlength=len(sizes))
        work = float((self._counts * padded).sum())
        return Capturing(
            name=name,
            sizes=tuple(map(int, sizes)),
            calls=tuple(map(int, used)),
            mean_us=float((self._counts * took).sum() / self._total),
            padding=1.0 - float((self._counts * self._sizes).sum()) / work,
            eager_calls=int(self._counts[~fits].sum()),
        )

    def best(self, most_graphs: int) -> Capturing:
        """The sizes, at most so many, with which all calls together take the least time."""
        ends = self._ends()
        sizes, done = self._sizes[ends], np.cumsum(self._counts)[ends]
        graph = self._times.graph(sizes)
        eager = np.cumsum(self._counts * self._times.eager(self._sizes))
        rest = eager[-1] - eager[ends]  # of the calls beyond a size, eagerly
        cost = graph * done
        came_from = [np.full(len(sizes), -1)]
        best_us, best_at = float((cost + rest).min()), (0, int((cost + rest).argmin()))
        for count in range(1, min(most_graphs, len(sizes))):
            # One graph for all calls behind size j up to size i, after the best for those up to j.
            between = cost[None, :] + graph[:, None] * (done[:, None] - done[None, :])
            between[np.triu_indices(len(sizes))] = np.inf
            came_from.append(between.argmin(axis=1))
            cost = between.min(axis=1)
            total = cost + rest
            if float(total.min()) < best_us:
                best_us, best_at = float(total.min()), (count, int(total.argmin()))
        return self.of("chosen", _path(sizes, came_from, *best_at))

    def _ends(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The sizes to choose from: all of them, or as many as may be weighed, with the largest."""
        count = len(self._sizes)
        if count <= MOST_SIZES:
            return np.arange(count)
        return np.unique(np.linspace(0, count - 1, MOST_SIZES).round().astype(np.int64))


def _path(sizes: Floats, came_from: Sequence[Floats], count: int, at: int) -> list[int]:
    found = []
    for step in range(count, -1, -1):
        found.append(int(sizes[at]))
        at = int(came_from[step][at])
    return found
