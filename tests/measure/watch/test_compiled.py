"""What torch.compile and captured models count anyway is summed, however often it is read or cleared."""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from graphdoctor.graphs.calls import tally
from graphdoctor.measure.watch.compiled import CompileCounts, Growing, ModelCounts


@dataclass
class Metrics:
    compile_id: str
    co_filename: str | None = "model.py"
    co_firstlineno: int = 7
    co_name: str = "forward"
    start_time: float = 0.0
    recompile_reason: str | None = None
    cudagraph_skip_reason: str | None = None
    is_forward: bool | None = True


class Dynamo(SimpleNamespace):
    """Counts as torch._dynamo.utils does."""

    def __init__(self) -> None:
        self.late: deque[Metrics] = deque(maxlen=4)
        super().__init__(
            counters={"graph_break": Counter(), "inductor": Counter()},
            get_compilation_metrics=lambda: list(self.late),
        )


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> Dynamo:
    dynamo = Dynamo()
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)
    return dynamo


def test_counters_that_are_cleared_go_on_growing() -> None:
    growing = Growing()
    for now in ({"a": 2}, {"a": 5}, {"a": 1, "b": 1}, {}, {"a": 1}):
        growing.read(now)
    assert growing.sums == {"a": 6, "b": 1}


def test_there_are_few_reasons_however_many_come() -> None:
    growing = Growing()
    growing.read({f"reason {number}": 1 for number in range(1000)})
    assert len(growing.sums) == 33 and growing.sums.total() == 1000


def test_breaks_skips_and_recompilations_are_read(dynamo: Dynamo) -> None:
    counts = CompileCounts()
    assert counts.read().recompiled == ()
    dynamo.counters["graph_break"]["a call\n  of print"] += 3
    dynamo.counters["inductor"]["cudagraph_skips"] += 2
    dynamo.late += [
        Metrics("0/0"),
        Metrics("0/1", recompile_reason="0/0: size mismatch", cudagraph_skip_reason="cpu device"),
        Metrics("0/1_1", start_time=1.0, is_forward=False),
        Metrics("1/0", co_name="other"),
    ]
    for _ in range(3):  # reading twice counts once
        read = counts.read()
    (again,) = read.recompiled
    assert (again.location.function, again.location.line, again.count) == ("forward", 7, 1)
    assert again.reason == "0/0: size mismatch"
    assert read.graph_breaks == {"a call of print": 3}
    assert (read.skips, read.skip_reasons) == (2, {"cpu device": 1})


def test_what_was_seen_stays_when_torch_forgets_it(dynamo: Dynamo) -> None:
    counts = CompileCounts()
    for number in range(1, 2000):
        dynamo.late.append(Metrics(f"0/{number}", start_time=float(number)))
        counts.read()
    assert counts.read().recompiled[0].count == 1999
    assert len(counts._seen) <= 320


def test_recompilations_of_the_real_compiler_are_seen_with_their_reason() -> None:
    torch._dynamo.reset()
    counts = CompileCounts()
    counts.read()

    def doubled(data: torch.Tensor) -> torch.Tensor:
        return data * 2

    compiled = torch.compile(doubled, backend="eager", dynamic=False)
    for size in (2, 3, 3, 2, 4):
        compiled(torch.ones(size))
    found = [each for each in counts.read().recompiled if each.location.function == "doubled"]
    assert [(each.location.file, each.count) for each in found] == [(__file__, 2)]
    if hasattr(torch._dynamo.utils.CompilationMetrics, "recompile_reason"):
        assert "size mismatch" in found[0].reason


class Model:
    """Counts as a captured model does."""

    def __init__(self, name: str = "Net") -> None:
        self.name, self.replayed, self.eager = name, 0, Counter[str]()
        tally.register(self)

    def fallbacks(self) -> Counter[str]:
        return Counter(self.eager)


def test_models_of_one_class_are_summed_and_those_that_are_gone_stay_counted() -> None:
    counts, first = ModelCounts(), Model()
    first.replayed, first.eager["x has 3 rows"] = 10, 2
    counts.read()
    del first
    gc.collect()
    second = Model()
    second.replayed, second.eager["x has 3 rows"] = 5, 1
    counts.read()
    (net,) = [model for model in counts.read() if model.name == "Net"]
    assert (net.replayed, net.eager) == (15, {"x has 3 rows": 3})


def test_a_model_whose_thread_counts_meanwhile_is_read_the_next_time() -> None:
    class Busy(Model):
        is_busy = True

        def fallbacks(self) -> Counter[str]:
            if self.is_busy:
                raise RuntimeError("dictionary changed size during iteration")
            return super().fallbacks()

    counts, model = ModelCounts(), Busy("Busy")
    model.replayed = 4
    assert [each for each in counts.read() if each.name == "Busy"] == []
    model.is_busy = False
    assert [each.replayed for each in counts.read() if each.name == "Busy"] == [4]


def test_models_that_are_gone_are_not_kept() -> None:
    before = len(tally._LIVING)
    model = Model()
    assert model in tally.tallies()
    del model
    gc.collect()
    assert len(tally._LIVING) <= before
