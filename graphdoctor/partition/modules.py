"""Which modules lie wholly inside a region, and which are safe in every iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from graphdoctor.values.recording import Op


def covered(inside: Counter[str], totals: Counter[str]) -> tuple[str, ...]:
    """The outermost modules whose whole `forward_work` is inside."""
    whole = {path for path, count in inside.items() if count == totals[path]}
    return tuple(_outermost(inside, whole))


def forward_work(kernels: Iterable[Op]) -> Counter[str]:
    """How many of these operators the forward pass of each module has, its submodules' included."""
    own = Counter(op.module for op in kernels if op.phase == "forward")
    total: Counter[str] = Counter()
    for module, count in own.items():
        for path in _with_parents(module):
            total[path] += count
    return total


def safe_modules(work: Iterable[Counter[str]], unsafe: Iterable[str]) -> tuple[str, ...]:
    """The outermost modules that did forward work in some iteration and hold nothing unsafe."""
    ran = dict.fromkeys(path for counted in work for path in counted)
    excluded = {path for module in unsafe for path in _with_parents(module)}
    return tuple(_outermost(ran, ran.keys() - excluded))


def _outermost(paths: Iterable[str], wanted: Collection[str]) -> Iterator[str]:
    """The wanted paths that no wanted path contains, in the given order."""
    for path in paths:
        parents = list(_with_parents(path))[1:]
        if path in wanted and not any(parent in wanted for parent in parents):
            yield path


def _with_parents(module: str) -> Iterator[str]:
    """The path itself and those of the modules around it, up to but without the nameless root."""
    while module:
        yield module
        module = module.rpartition(".")[0]
