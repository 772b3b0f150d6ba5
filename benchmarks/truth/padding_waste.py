"""Lengths of calls that services logged -> how much of the work is padding, by the sizes that are captured.

    python benchmarks/truth/padding_waste.py

Prints the table of docs/sweep.md from benchmarks/data/lengths.json: published logs of prompts, as how often
each length came in the first half of the log's calls and in the second. Sizes are chosen as `graphdoctor sweep
--lengths` does, for the first half, and all are judged on the second. A graph's time is taken to grow with its
size, so that the waste is the share of rows that are padding and depends on no model.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphdoctor.sweep.lengths import of_vllm, plan_lengths, powers_of_two
from graphdoctor.values.figures import Range
from graphdoctor.values.sweep import SweepRow

LOGS = Path(__file__).parents[1] / "data" / "lengths.json"
GRAPHS = 8
VLLM_LARGEST = 512  # that it captures by itself
_MUCH = 1000.0  # times a graph's time is eager's, so that each call of the first half gets one

HEAD = (
    "| log of prompts | calls | median, longest | sizes | graphs | padding | chosen, as many | chosen, 8 |",
    "|---|---|---|---|---|---|---|---|",
)


def table() -> Iterator[str]:
    """Lines of Markdown: for each log, what is usual and what is chosen."""
    yield from HEAD
    for name, log in json.loads(LOGS.read_text(encoding="utf-8")).items():
        first, second = Counter(dict(log["first_half"])), Counter(dict(log["second_half"]))
        few, judged = _up_to(first, VLLM_LARGEST), _up_to(second, VLLM_LARGEST)
        if few and judged:
            short = f"{name}, up to {VLLM_LARGEST}"
            yield _line(short, few, judged, "vLLM's default", of_vllm(VLLM_LARGEST))
            yield _line(short, few, judged, "powers of two", powers_of_two(VLLM_LARGEST))
        yield _line(name, first, second, "powers of two", powers_of_two(max(first | second)))


def _line(
    name: str, first: Counter[int], second: Counter[int], usual: str, sizes: Sequence[int]
) -> str:
    cells = (
        name,
        f"{second.total():,}",
        f"{sorted(second.elements())[second.total() // 2]:,}, {max(second):,}",
        usual,
        f"{len(sizes)}",
        waste(second, sizes),
        waste(second, chosen(first, len(sizes))),
        waste(second, chosen(first, GRAPHS)),
    )
    return f"| {' | '.join(cells)} |"


def waste(lengths: Counter[int], sizes: Sequence[int]) -> str:
    """The share of computed rows that is padding, and the calls that no size is large enough for."""
    padded = {
        length: sizes[place]
        for length in lengths
        if (place := bisect_left(sizes, length)) < len(sizes)
    }
    rows = sum(count * padded.get(length, length) for length, count in lengths.items())
    asked = sum(count * length for length, count in lengths.items())
    left = sum(count for length, count in lengths.items() if length not in padded)
    said = f", {left} {'call' if left == 1 else 'calls'} eager" if left else ""
    return f"{1 - asked / rows:.1%}{said}"


def chosen(lengths: Counter[int], graphs: int) -> tuple[int, ...]:
    """The sizes for a log, where time is in proportion to rows."""
    rows = [
        SweepRow(size, "predicted", graph_us=_exactly(size), eager_us=_exactly(_MUCH * size))
        for size in (1, max(lengths))
    ]
    plan = plan_lengths(lengths, rows, most_graphs=graphs)
    assert plan is not None
    return plan.chosen.sizes


def _exactly(value: float) -> Range:
    return Range(value, value, value)


def _up_to(lengths: Counter[int], most: int) -> Counter[int]:
    return Counter({size: count for size, count in lengths.items() if size <= most})


def main() -> None:
    print("\n".join(table()))


if __name__ == "__main__":
    main()
