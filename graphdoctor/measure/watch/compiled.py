"""Reads torch.compile's own counters, and those of captured models, as sums that only grow."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from graphdoctor.graphs.calls.tally import tallies
from graphdoctor.values.locations import Location
from graphdoctor.values.watched import Recompiled, WatchedCompile, WatchedModel

_MOST_REASONS = 32
_OTHER = "other reasons"


class Growing:
    """Sums of counters that may be cleared between two readings, by reason, of which there are few."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self._last: dict[str, int] = {}

    def read(self, now: Mapping[Any, int]) -> None:
        for what, number in dict(now).items():
            reason = _one_line(what)
            before = self._last.get(reason, 0)
            self.add(reason, number - before if number >= before else number)
            self._last[reason] = number

    def add(self, reason: str, number: int) -> None:
        is_kept = reason in self.sums or len(self.sums) < _MOST_REASONS
        if number:
            self.sums[reason if is_kept else _OTHER] += number


class CompileCounts:
    """Reads what torch._dynamo counts anyway, if the program has imported it."""

    def __init__(self) -> None:
        self._breaks = Growing()
        self._skips = Growing()
        self._skip_reasons: Counter[str] = Counter()
        self._recompiled: dict[Location, tuple[int, str]] = {}
        self._seen: dict[object, None] = {}  # compilations of late, in order

    def read(self) -> WatchedCompile:
        dynamo: Any = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None and hasattr(dynamo, "counters"):
            self._breaks.read(dynamo.counters.get("graph_break", {}))
            self._skips.read(
                {"": dict(dynamo.counters.get("inductor", {})).get("cudagraph_skips", 0)}
            )
            for metrics in getattr(dynamo, "get_compilation_metrics", list)():
                self._note(metrics)
        return WatchedCompile(
            tuple(
                Recompiled(where, count, reason)
                for where, (count, reason) in sorted(
                    self._recompiled.items(), key=lambda item: -item[1][0]
                )
            ),
            dict(self._breaks.sums.most_common()),
            self._skips.sums[""],
            dict(self._skip_reasons.most_common()),
        )

    def _note(self, metrics: Any) -> None:
        key = (metrics.compile_id, getattr(metrics, "start_time_us", None), metrics.start_time)
        if key in self._seen:
            return
        self._seen[key] = None
        while len(self._seen) > 10 * _MOST_REASONS:
            del self._seen[next(iter(self._seen))]
        if reason := getattr(metrics, "cudagraph_skip_reason", None):
            self._skip_reasons[_one_line(reason)] += 1
        # A compilation's id is "frame/compilation", with the number of its restart behind "_".
        number = str(metrics.compile_id or "").partition("/")[2].partition("_")[0]
        is_backward = getattr(metrics, "is_forward", True) is False
        if is_backward or not metrics.co_filename or number in ("", "0"):
            return
        where = Location(
            metrics.co_filename, metrics.co_firstlineno or 0, metrics.co_name or "<unknown>"
        )
        count, before = self._recompiled.get(where, (0, ""))
        reason = _one_line(getattr(metrics, "recompile_reason", None) or before)
        self._recompiled[where] = (count + 1, reason)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


class ModelCounts:
    """Reads what models of graphdoctor.capture count, and keeps the sums of those that are gone."""

    def __init__(self) -> None:
        self._eager: dict[str, Growing] = {}
        self._replayed: Counter[str] = Counter()
        self._last: WeakKeyDictionary[Any, tuple[int, Counter[str]]] = WeakKeyDictionary()

    def read(self) -> tuple[WatchedModel, ...]:
        for model in tallies():
            replayed, eager = self._last.get(model, (0, Counter[str]()))
            try:
                now = model.replayed, model.fallbacks()
            except RuntimeError:  # its thread has just added a reason: the next reading has it
                continue
            self._replayed[model.name] += max(0, now[0] - replayed)
            sums = self._eager.setdefault(model.name, Growing())
            for reason, number in (now[1] - eager).items():
                sums.add(_one_line(reason), number)
            self._last[model] = now
        return tuple(
            WatchedModel(name, self._replayed[name], dict(sums.sums.most_common()))
            for name, sums in self._eager.items()
        )
