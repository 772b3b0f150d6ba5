"""A step that will do something else in a later state: found however the code that decides is spelled."""

from __future__ import annotations

import bisect
import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.values.errors import UsageError
from graphdoctor.values.finding import Finding
from graphdoctor.values.report import Report
from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)
OTHER = nn.Linear(8, 8)
COUNT = 0
LOCAL = threading.local()


def branches(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.rule == "GD217"]


class Counting:
    """Ways in which code of a step decides by how often it ran."""

    def __init__(self) -> None:
        self.calls = 0
        self.schedule, self.now = {100: 4, 200: 2}, 8
        self.layers = [LINEAR, OTHER]
        self.kept: deque[int] = deque(maxlen=50)
        self.waiting = deque([1.0] * 60 + [2.0] * 60)
        self.counted = np.zeros(2, dtype=np.int64)
        self.rate = 0.0
        self.seen: set[object] = set()
        self.cache: dict[int, object] = {}

    def variable(self) -> float:
        calls = self.calls
        return 2.0 if calls % 100 == 0 else 1.0

    def truth_of_a_rest(self) -> float:
        rest = self.calls % 100
        return 1.0 if rest else 2.0

    def exact_number(self) -> float:
        calls = self.calls
        return 2.0 if calls == 537 else 1.0

    def around(self) -> float:
        self.now = (self.now + 1) % 8
        return 2.0 if self.now == 0 and self.calls > 20 else 1.0

    def table(self) -> float:
        return [1.0, 0.5, 0.25][min(self.calls // 100, 2)]

    def dictionary(self) -> float:
        self.now = self.schedule.get(self.calls, self.now)
        return float(self.now)

    def search(self) -> float:
        return 0.1 ** bisect.bisect([300, 600], self.calls)

    def rounded(self) -> float:
        return float(int(self.calls * 0.01))

    def matched(self) -> float:
        match self.calls % 50:
            case 0:
                return 2.0
            case _:
                return 1.0

    def other_function(self) -> float:
        return every_hundred(self.calls)

    def full(self) -> float:
        self.kept.append(1)
        full = len(self.kept) == self.kept.maxlen
        return 2.0 if full else 1.0

    def used_up(self) -> float:
        return self.waiting.popleft()

    def members_of_a_set(self) -> float:
        self.seen.update((object(), object()))
        return {1076: 2.0}.get(len(self.seen), 1.0)

    def keys_of_a_dictionary(self) -> float:
        self.cache[self.calls] = None
        return {537: 2.0}.get(len(self.cache), 1.0)

    def array(self) -> float:
        self.counted[0] += 1
        return float(2 ** self.counted[0] > 2**40)

    def comes_near(self) -> float:
        self.rate = 0.9 * self.rate + 0.1
        rate = self.rate
        return float(rate > 0.99)


@functools.cache
def every_hundred(calls: int) -> float:
    return 0.5 ** (calls // 100)


SPELLINGS = [name for name, found in vars(Counting).items() if not name.startswith("_")]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_number_that_will_differ_is_found_however_it_is_spelled(spelling: str) -> None:
    state = Counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        return LINEAR(x) * getattr(state, spelling)()

    (finding,) = branches(reported(step))
    assert finding.location is not None and finding.location.file == __file__
    assert "state.calls" in finding.message


@dataclass(frozen=True)
class Frozen:
    calls: int = 0


def in_closure() -> Callable[[], int]:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


def in_global() -> Callable[[], int]:
    def count() -> int:
        global COUNT
        COUNT += 1
        return COUNT

    return count


def in_frozen_object() -> Callable[[], int]:
    held = [Frozen()]

    def count() -> int:
        held[0] = replace(held[0], calls=held[0].calls + 1)
        return held[0].calls

    return count


def local_to_a_thread() -> Callable[[], int]:
    LOCAL.calls = 0

    def count() -> int:
        LOCAL.calls += 1
        return LOCAL.calls  # type: ignore[no-any-return]

    return count


def at_a_function() -> Callable[[], int]:
    def count() -> int:
        count.calls += 1  # type: ignore[attr-defined]
        return count.calls  # type: ignore[attr-defined, no-any-return]

    count.calls = 0  # type: ignore[attr-defined]
    return count


def in_a_default() -> Callable[[], int]:
    def count(held: list[int] = [0]) -> int:  # noqa: B006
        held[0] += 1
        return held[0]

    return count


PLACES = [
    in_closure, in_global, in_frozen_object, local_to_a_thread, at_a_function, in_a_default,
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_it_does_not_matter_where_the_number_is_kept(place: Callable[[], Any]) -> None:
    count = place()

    def step(x: torch.Tensor) -> torch.Tensor:
        calls = count()
        return LINEAR(x) if calls < 90 else OTHER(x)

    (finding,) = branches(reported(step))
    assert "more steps" in finding.message


def test_another_layer_of_the_same_shape_is_something_else() -> None:
    state = Counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        return state.layers[min(state.calls // 100, 1)](x)  # type: ignore[no-any-return]

    (finding,) = branches(reported(step))
    assert "differs after 97 more steps" in finding.message


def test_recorded_steps_that_differ_among_themselves_are_no_news_of_a_later_one() -> None:
    kept = Counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        kept.calls += 1
        return LINEAR(x) * 2 if kept.calls % 2 else LINEAR(x)

    report = reported(step)
    assert not branches(report)
    assert "GD201" in {finding.rule for finding in report.findings}


def test_what_a_later_step_would_write_or_print_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, file = Counting(), tmp_path / "checkpoint.pt"

    def rest() -> int:
        return state.calls % 50

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        if not rest():
            print("saving")
            torch.save(LINEAR.state_dict(), file)
        return LINEAR(x)

    assert len(branches(reported(step))) == 1
    assert not file.exists() and "saving" not in capsys.readouterr().out


def test_a_step_that_would_never_end_in_a_later_state_is_left() -> None:
    state = Counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        calls = state.calls
        while calls == 500:
            x = x + 0
        return LINEAR(x)

    (finding,) = branches(reported(step))
    assert "after 497 more steps" in finding.message


def test_a_state_that_the_step_refuses_says_nothing() -> None:
    state = Counting()

    def step(x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        if len(range(state.calls)) > 10:
            raise RuntimeError("too many")
        return LINEAR(x)

    assert "too many" not in reported(step).reason


def endless() -> Iterator[float]:
    while True:
        yield 1.0


RUNNING: dict[str, Callable[[], Callable[[], float]]] = {
    "count": lambda: functools.partial(lambda it: 1.0 + 0 * next(it), itertools.count()),
    "cycle": lambda: functools.partial(lambda it: next(it), itertools.cycle([1.0])),
    "generator": lambda: functools.partial(lambda it: next(it), endless()),
}


@pytest.mark.parametrize("kind", RUNNING)
def test_what_is_taken_from_a_running_iterator_is_found(kind: str) -> None:
    take = RUNNING[kind]()
    report = reported(lambda x: LINEAR(x) * take())
    assert "GD218" in {finding.rule for finding in report.findings}


def test_an_iterator_that_is_only_held_is_no_doubt() -> None:
    held, waiting = iter([1.0]), endless()
    report = reported(lambda x: LINEAR(x) if held is not None and waiting is not None else x)
    assert report.verdict == "safe"


def test_work_for_another_thread_is_a_remark_and_the_error_if_it_is_all() -> None:
    with ThreadPoolExecutor(1) as pool:

        def beside(x: torch.Tensor) -> torch.Tensor:
            pool.submit(lambda: None).result()
            return LINEAR(x)

        report = reported(beside)
        assert any("work to another thread (test_later_steps.py" in one for one in report.limits)
        with pytest.raises(UsageError, match="another thread"):
            reported(lambda x: pool.submit(LINEAR, x).result())


def test_python_numbers_that_the_step_is_called_with_are_named() -> None:
    def step(x: torch.Tensor, rate: float, flag: bool) -> torch.Tensor:
        return LINEAR(x) * rate if flag else x

    report = graphdoctor.analyze(
        step, torch.randn(4, 8), 0.5, True, device="emulated", strategies=()
    )
    (said,) = (one for one in report.limits if "Python numbers" in one)
    assert "`inputs[1]`" in said and "inputs[2]" not in said


def test_a_model_behind_the_step_s_object_is_put_on_the_device_too() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.layers = [nn.Linear(8, 8)]

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](x)  # type: ignore[no-any-return]

    assert reported(Trainer().step).verdict == "safe"


def test_what_kept_a_gradient_s_accumulation_alive_is_forgotten_with_it() -> None:
    model = nn.Linear(8, 8)  # reported() runs on the emulated device, also beside a GPU
    held = [model(torch.randn(4, 8)).sum()]

    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = model(x).square().mean() * (len(held) + 1)
        loss.backward()
        return loss.detach()

    found = reported(step).findings[0]
    assert found.rule == "GD117"
    assert (
        "still references an AccumulateGrad node of an earlier step"
        in found.message.partition(". ")[0]
    )
    held.clear()
    assert reported(step).verdict == "safe"
