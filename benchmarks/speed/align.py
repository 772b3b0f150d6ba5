"""Time of pairing up two runs: equal, slightly different, looping and unrelated ones. Prints ms."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from graphdoctor.rules.causes.align import align
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Op


def _op(key: int) -> Op:
    return Op(
        index=0,
        name=f"aten.op{key}.default",
        args=(),
        kwargs=(),
        outputs=(),
        writes=(),
        tags=(),
        phase="forward",
        module="",
        device="cuda:0",
        location=Location("model.py", key),
    )


def _pairs(count: int) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
    rng = random.Random(0)
    distinct = list(range(count))
    edited = [key for key in distinct if rng.random() > 0.01]
    loop = [key % 20 for key in distinct]
    loop_edited = [key for key in loop if rng.random() > 50 / count]
    return {
        "equal": (distinct, distinct),
        "1 % left out": (distinct, edited),
        "loop, 50 left out": (loop, loop_edited),
        "unrelated loops": (loop, [key + 20 for key in loop]),
        "shuffled": (distinct, rng.sample(distinct, count)),
        "random of 50": (
            [rng.randrange(50) for _ in distinct],
            [rng.randrange(50) for _ in distinct],
        ),
    }


def main() -> None:
    for count in (1_000, 10_000, 100_000):
        for name, (a, b) in _pairs(count).items():
            ops_a, ops_b = [_op(key) for key in a], [_op(key) for key in b]
            start = time.perf_counter()
            pairs = align(ops_a, ops_b)
            wall_ms = (time.perf_counter() - start) * 1e3
            matched = sum(i is not None and j is not None for i, j in pairs)
            print(f"{count:>7} operators  {name:<18} {wall_ms:9.1f} ms  {matched:>7} paired")


if __name__ == "__main__":
    main()
