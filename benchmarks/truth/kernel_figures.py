"""Kernels that a profiler saw -> the figures of kernels in the profiles that are fitted to them.

Kernels are put into the kinds of `graphdoctor/estimate/kernels.py` by their operator's and their own name. What a
kind's smallest kernels take is the median of those that move little; the share of the peak that it reaches is the
median of those that move, or compute, much. A convolution's figures are those of a grid that leave the least error of
all convolutions of a workload together, since a profiler tells no strides. Everything can be fitted to all families
but one. benchmarks/data/kernels_* is what `benchmarks/gpu/kernels.py` wrote.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import log, prod
from statistics import median
from typing import Any

from measured_steps import KERNELS
from msgspec.structs import replace
from recorded_steps import Step

from graphdoctor.estimate.costs import KnownCosts
from graphdoctor.estimate.gpus import DeviceProfile, Figure, load_profile
from graphdoctor.estimate.kernels import kernel_kind, launches
from graphdoctor.estimate.products import FEW_ROWS, is_convolution
from graphdoctor.values.recording import Op

_LITTLE_BYTES, _MUCH_BYTES = 100_000, 10_000_000
_LITTLE_FLOPS, _MUCH_FLOPS = 0.05e9, 5e9
# Of the others too little is seen, or they are too unlike each other.
_CORRECTED = (
    "stream",
    "strided",
    "columns",
    "normalize",
    "concat",
    "matmul",
    "convolution",
    "attention",
    "optimizer",
)
_MATH = {
    "matmul": ("math_share",),
    "convolution": ("convolution_share",),
    "attention": ("attention_share",),
}
SHARES = frozenset(name for names in _MATH.values() for name in names)
_TRUST = 0.5  # in such a correction: what kernels show of themselves counts as much
_ELEMENTWISE = ("stream", "strided")
_STREAMED = ("stream", "strided", "reduce", "columns", "normalize")
_SIZES = {
    "float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8, "long int": 8, "int": 4, "bool": 1,
    "c10::complex<float>": 8,
}  # fmt: skip
_PEAKS = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}
_ALIGNED = 8  # elements of half precision
_SAMPLES = "sample_models/"
_FEWEST = 5  # kernels that a figure is the median of
_GRID = {
    "smallest_kernel_us.convolution": (1.2, 1.6, 2.0, 2.5, 3.2, 4.0),
    "memory_share.convolution": (0.35, 0.5, 0.7),
    "convolution_share": (0.12, 0.18, 0.25, 0.33, 0.42, 0.52),
}

Point = tuple[tuple[str, float], ...]  # figures by path


@dataclass(frozen=True)
class Traced:
    """One workload's kernels on a GPU."""

    case: str
    eager_us: float
    graph_us: float | None
    pool_bytes: int | None
    kind_us: Mapping[str, float]
    launches: float

    @property
    def busy_us(self) -> float:
        return sum(self.kind_us.values())


@cache
def traced() -> dict[str, Traced]:
    """Every workload of the file, by its case."""
    found = {}
    for line in gzip.decompress(KERNELS.read_bytes()).decode().splitlines():
        row = json.loads(line)
        if "operators" in row:
            found[row["case"]] = _traced(row)
    return found


def _traced(row: dict[str, Any]) -> Traced:
    kind_us: dict[str, float] = defaultdict(float)
    launched = 0.0
    for operator, _, _, kernels in row["operators"]:
        longest = max(kernels, key=lambda kernel: kernel[2])[0]
        for name, runs, us in kernels:
            kind_us[kind_of(operator, longest if "Memset" in name else name)] += us
            launched += runs
    return Traced(
        row["case"], row["eager_us"], row.get("graph_us"), row.get("pool_bytes"), kind_us, launched
    )


def kind_of(operator: str, kernel: str) -> str:
    """Which of the kinds a kernel is; "other" where it is none, as a transfer."""
    name = operator.rpartition("::")[2]
    if "convolution" in name or "conv_depthwise" in name:
        return "convolution"
    if name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"):
        return "matmul"
    if "attention" in name:
        return "attention"
    if name.startswith(("_fused_ad", "_fused_sgd", "_foreach", "_amp_foreach")):
        return "optimizer"
    if name.endswith(("layer_norm_backward", "batch_norm_backward")):
        return "columns"
    if "softmax" in name or ("norm" in name and name not in ("norm", "linalg_vector_norm")):
        return "normalize"
    if name in ("sum", "mean"):
        return "columns" if "<128, 4" in kernel else "reduce"
    if name == "cat":
        return "concat"
    if "embedding" in name or "scatter" in name or name.startswith(("index", "gather", "_index")):
        return "gather"
    if "vectorized_elementwise" in kernel or "unrolled_elementwise" in kernel:
        return "stream"
    if "elementwise_kernel" in kernel:
        return "strided"
    if "reduce_kernel" in kernel:
        return "reduce"
    return "other" if kernel.startswith("Mem") else "strided"


@dataclass(frozen=True)
class Kernel:
    """One kernel of an operator: what it takes, and what its operator's shapes say that it moves and computes."""

    case: str
    kind: str
    us: float
    moved: int
    flops: float = 0.0
    peak: str = ""


class Seen:
    """All kernels of all workloads; `figures` are fitted to those of all families but one.

    Those of sample models only judge: they are workloads in small, whose few kernels say little of large ones.
    """

    def __init__(self, steps: Mapping[str, Step]) -> None:
        self._profile = load_profile("h200")
        self._kernels = [one for one in _kernels() if not one.case.startswith(_SAMPLES)]
        self._truth = {
            case: row
            for case, row in traced().items()
            if case in steps and not case.startswith(_SAMPLES)
        }
        convolutions = {
            case: [op for op in steps[case].iteration.ops if is_convolution(op)]
            for case in self._truth
        }
        points = (tuple(zip(_GRID, values, strict=True)) for values in product(*_GRID.values()))
        self._points = [(point, self._totals(point, convolutions)) for point in points]
        self._parts = {
            case: _parts(steps[case].iteration.ops, self._profile) for case in self._truth
        }

    def figures(self, *, but: str, family_of: Mapping[str, str]) -> dict[str, float]:
        """By path."""
        kernels = [one for one in self._kernels if family_of.get(one.case) != but]
        found: dict[str, float] = {}
        for kind in (*_STREAMED, "gather", "concat", "attention", "matmul"):
            found |= self._of_kind(kind, [one for one in kernels if one.kind == kind])
        cases = [case for case in self._truth if family_of.get(case) != but]
        point, _ = min(self._points, key=lambda row: self._error(row[1], cases))
        return self._scaled(found | dict(point), cases)

    def _scaled(self, figures: dict[str, float], cases: Sequence[str]) -> dict[str, float]:
        """So that each kind's total, as recordings foresee it, is neither too long nor too short in the median."""
        found = dict(figures)
        for kind in _CORRECTED:
            floor, share = f"smallest_kernel_us.{kind}", f"memory_share.{kind}"
            shares = _MATH.get(kind, (share,))
            us = figures.get(floor, at(self._profile, floor).mid)
            of_work = shares[-1]
            faster = figures.get(of_work, old := at(self._profile, of_work).mid) / old
            ratios = []
            for case in cases:
                true = self._truth[case].kind_us.get(kind, 0.0)
                count, work = self._parts[case].get(kind, (0, 0.0))
                if true and count:
                    weight = true / self._truth[case].busy_us
                    ratios.append((true / (count * us + work / faster), weight))
            times = _weighted_median(ratios) ** _TRUST
            found[floor] = us * times
            for path in shares:
                if (
                    path in figures
                ):  # others, of which large kernels are too few, stay as the profile has them
                    found[path] = figures[path] / times
        return found

    def _of_kind(self, kind: str, kernels: Sequence[Kernel]) -> dict[str, float]:
        found: dict[str, float] = {}
        small = [one.us for one in kernels if _is_small(one)]
        if len(small) < _FEWEST:
            return found
        floor = found[f"smallest_kernel_us.{kind}"] = median(small)
        left = [(one, one.us - floor) for one in kernels if one.us > 2 * floor]
        moving = [
            one.moved / 1e3 / us / self._profile.memory_gb_s.mid
            for one, us in left
            if one.moved >= _MUCH_BYTES and one.flops < _MUCH_FLOPS / 10
        ]
        if kind in (*_STREAMED, "matmul") and len(moving) >= _FEWEST:
            found[f"memory_share.{kind}"] = median(moving)
        rates = self._profile.math_tflops
        reached = [
            one.flops / 1e6 / us / getattr(rates, one.peak).mid
            for one, us in left
            if one.flops >= _MUCH_FLOPS
        ]
        if len(reached) >= _FEWEST:
            found["math_share"] = median(reached)
        return found

    def _error(self, us: Mapping[str, float], cases: Sequence[str]) -> float:
        total = 0.0
        for case in cases:
            true = self._truth[case].kind_us.get("convolution", 0.0)
            if true and us[case]:
                total += (true / self._truth[case].busy_us) * abs(log(us[case] / true))
        return total

    def _totals(self, point: Point, convolutions: Mapping[str, Sequence[Op]]) -> dict[str, float]:
        costs = KnownCosts(with_paths(self._profile, dict(point)))
        return {
            case: sum(costs.cost(op, autograd=False).device_us.mid for op in ops)
            for case, ops in convolutions.items()
        }


def _parts(ops: Sequence[Op], profile: DeviceProfile) -> dict[str, tuple[int, float]]:
    """For each kind its kernels, and their time beyond that of the smallest."""
    costs = KnownCosts(profile)
    found: dict[str, tuple[int, float]] = {}
    for op in ops:
        if op.kernels is None and (count := launches(op)):
            kind = kernel_kind(op)
            us = costs.cost(op, autograd=False).device_us.mid
            floor = at(profile, f"smallest_kernel_us.{kind}").mid
            before = found.get(kind, (0, 0.0))
            found[kind] = before[0] + count, before[1] + us - count * floor
    return found


def _weighted_median(values: Sequence[tuple[float, float]]) -> float:
    half, passed = sum(weight for _, weight in values) / 2, 0.0
    for value, weight in sorted(values):
        passed += weight
        if passed >= half:
            return value
    return 1.0


def _is_small(kernel: Kernel) -> bool:
    little = _LITTLE_BYTES if kernel.kind in _ELEMENTWISE else 10 * _LITTLE_BYTES
    return kernel.moved < little and kernel.flops < _LITTLE_FLOPS


def _kernels() -> Iterator[Kernel]:
    """Of operators that launch one kernel; what they write counts as much as the largest that they read."""
    for line in gzip.decompress(KERNELS.read_bytes()).decode().splitlines():
        row = json.loads(line)
        for operator, shapes, types, kernels in row.get("operators", ()):
            names = [kernel for kernel in kernels if "Memset" not in kernel[0]]
            uses = [
                (prod(shape), _SIZES[kind], shape, kind)
                for shape, kind in zip(shapes, types, strict=True)
                if kind in _SIZES and shape
            ]
            if not names or not uses:
                continue
            name, runs, us = names[0]
            kind = kind_of(operator, name)
            if kind == "attention":  # its kernels, of one or several
                runs, us = (sum(kernel[place] for kernel in names) for place in (1, 2))
            elif len(names) != 1:
                continue
            moved = sum(count * size for count, size, *_ in uses)
            if kind == "matmul":
                yield from _product(row["case"], us / runs, uses)
                continue
            most = max(count * size for count, size, *_ in uses)
            if kind == "gather":  # a few rows of the table that it is given
                moved -= most
            writes_itself = operator.endswith(("copy_", "fill_"))  # it is among what it is given
            if kind in ("stream", "strided", "normalize") and not writes_itself:
                moved += most
            yield Kernel(row["case"], kind, us / runs, moved)


def _product(case: str, us: float, uses: Sequence[tuple[int, int, Any, str]]) -> Iterator[Kernel]:
    sides = [use for use in uses if len(use[2]) >= 2]
    if len(sides) < 2:
        return
    (left, size, (*_, rows, inner), kind), (*_, other, _kind) = sides[-2:]
    columns, batches = other[-1], left // max(1, rows * inner)
    if kind not in _PEAKS or (size == 2 and (columns % _ALIGNED or inner % _ALIGNED)):
        return
    flops = 2.0 * batches * rows * inner * columns
    moved = batches * (rows * inner + inner * columns + rows * columns) * size
    if rows <= FEW_ROWS and moved >= _MUCH_BYTES:  # reads its weights as fast as any stream
        return
    yield Kernel(case, "matmul", us, moved, flops, _PEAKS[kind])


def at(profile: DeviceProfile, path: str) -> Figure:
    """The figure of that path."""
    found: Any = profile
    for part in path.split("."):
        found = getattr(found, part)
    assert isinstance(found, Figure)
    return found


def with_paths(profile: DeviceProfile, middles: Mapping[str, float]) -> DeviceProfile:
    """The profile with these middles; bounds keep their distance in ratio."""
    for path, middle in middles.items():
        old = at(profile, path)
        times = middle / old.mid
        figure = Figure(old.low * times, middle, old.high * times, old.source)
        group, _, name = path.rpartition(".")
        if not group:
            profile = replace(profile, **{name: figure})
        else:
            profile = replace(
                profile, **{group: replace(getattr(profile, group), **{name: figure})}
            )
    return profile
