"""Recording leaves the target as it was, whatever the step does, and is the same each time."""

from __future__ import annotations

import itertools
import linecache
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.record import Session, prepare, record
from graphdoctor.record import session as session_module
from graphdoctor.target import Inputs, from_object
from graphdoctor.target.build import Origin
from graphdoctor.target.build import build as build_target
from graphdoctor.target.description import Description
from graphdoctor.values.errors import UserCodeError
from graphdoctor.values.recording import Iteration, Recording
from tests.support.diagnosing import recorded

Deed = Callable[["Everything", torch.Tensor], Any]


class Everything:
    """A model, an optimizer and all kinds of state on the host."""

    def __init__(self) -> None:
        layers = (nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), capturable=True)
        self.count, self.seen, self.named = 0, [], {"a": 1}
        self.hidden = torch.zeros(4, device="cuda")


def train(at: Everything, x: torch.Tensor) -> None:
    at.optimizer.zero_grad()
    at.model(x).sum().backward()
    at.optimizer.step()


DEEDS: dict[str, Deed] = {
    "train": train,
    "count": lambda at, x: setattr(at, "count", at.count + 1),
    "grow": lambda at, x: at.seen.append(x),
    "add a key": lambda at, x: at.named.update({len(at.named): 2}),
    "rebind": lambda at, x: setattr(at, "hidden", at.hidden + 1),
    "write": lambda at, x: at.hidden.add_(1),
    "draw": lambda at, x: (random.random(), np.random.rand(), torch.rand(2, device="cuda")),
    "seed": lambda at, x: (random.seed(3), torch.manual_seed(4)),
    "evaluate": lambda at, x: at.model.eval(),
    "change the rate": lambda at, x: at.optimizer.param_groups[0].update(lr=0.5),
    "change an input": lambda at, x: x.zero_(),
    "freeze": lambda at, x: at.model[0].weight.requires_grad_(False),
    "ask": lambda at, x: torch.cuda.is_current_stream_capturing(),
}


def fingerprint(at: Everything) -> list[object]:
    """Everything that the state consists of, as bytes, numbers and identities."""
    tensors = [*at.model.state_dict().values(), at.hidden]
    for state in at.optimizer.state.values():
        tensors.extend(state.values())
    gradients = [p.grad for p in at.model.parameters()]
    tensors.extend(g for g in gradients if g is not None)
    return [
        [(t.data_ptr(), t.cpu().numpy().tobytes()) for t in tensors],
        [(p.requires_grad, p.grad is None) for p in at.model.parameters()],
        (at.count, len(at.seen), dict(at.named), at.model.training),
        at.optimizer.param_groups[0]["lr"],
        (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()),  # type: ignore[union-attr]
    ]


def build(deeds: list[str], *, fails_at: int | None = None) -> tuple[Everything, object]:
    at = Everything()
    calls = itertools.count()  # cannot be put back, so it counts all calls

    def step(x: torch.Tensor) -> torch.Tensor:
        for deed in deeds:
            DEEDS[deed](at, x)
        if next(calls) == fails_at:
            raise ValueError("in the middle")
        return x * 2

    x = torch.rand(3, 4, device="cuda")
    return at, SimpleNamespace(step=step, inputs=(x,), state=[at, at.model, at.optimizer])


def prepared(described: object, device: EmulatedDevice) -> Session:
    return prepare(from_object(lambda: described), device, iterations=4)


def shape_of(iteration: Iteration) -> bytes:
    """An iteration without the numbers of its storages, which are never used twice."""
    numbers: dict[int, int] = {}

    def renumbered(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: numbers.setdefault(item, len(numbers))
                if key == "storage"
                else renumbered(item)
                for key, item in value.items()
                if key not in ("writes", "before", "after")
            }
        if isinstance(value, (list, tuple)):
            return [renumbered(item) for item in value]
        return value

    return msgspec.json.encode(renumbered(msgspec.to_builtins(iteration)))


@settings(max_examples=8)
@given(
    st.lists(st.sampled_from(sorted(DEEDS)), max_size=5),
    st.sampled_from([None, None, None, 4, 6, 8, 9, 12]),
)
def test_recording_leaves_no_trace_and_again_gives_the_same(
    deeds: list[str], fails_at: int | None
) -> None:
    """Calls 0 and 1 warm up, 2 tries other values, 3 to 6 are recorded; where it asks, one more, and 8 to 11."""
    if fails_at is not None and fails_at > 7:
        deeds = ["ask", *deeds]
    with EmulatedDevice() as device:
        at, described = build(deeds, fails_at=fails_at)
        session = prepared(described, device)
        before = fingerprint(at)
        if fails_at is None:
            first = record(session, progress=lambda doing: None)
        else:
            with pytest.raises(UserCodeError, match="in the middle"):
                record(session, progress=lambda doing: None)
        assert fingerprint(at) == before
        if fails_at is None:
            second = record(session, progress=lambda doing: None)
            assert list(map(shape_of, first.captured)) == list(map(shape_of, second.captured))
            assert first.limits == second.limits


@pytest.mark.parametrize(
    ("deed", "expected"),
    [
        ("count", {("count", "value")}),
        ("grow", {("seen)", "grown")}),
        ("add a key", {("named)", "grown")}),
        ("rebind", {("hidden", "rebound-tensor")}),
        ("write", set()),
    ],
)
def test_what_the_host_changes_is_recorded(deed: str, expected: set[tuple[str, str]]) -> None:
    recording = recorded(lambda: build([deed])[1], iterations=2)
    found = {(c.path.rpartition(".")[2], c.kind) for c in recording.captured[1].changes}
    assert found == expected


def test_both_series_see_the_same_inputs_and_start_from_the_same_place() -> None:
    recording = recorded(lambda: build(["train", "count"])[1])
    assert [c.before for c in recording.eager[0].changes] == [
        c.before for c in recording.captured[0].changes
    ]
    assert [i.capturing for i in (*recording.eager, *recording.captured)] == [False] * 4 + [
        True
    ] * 4
    names = [[op.name for op in iteration.ops] for iteration in recording.captured]
    assert all(each == names[0] for each in names)


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 6])
def test_the_values_as_given_are_recorded_too_where_three_others_are(iterations: int) -> None:
    with EmulatedDevice() as device:
        x = torch.rand(3, 4, device="cuda")
        described = SimpleNamespace(step=lambda x: x * 2, inputs=(x,))
        session = prepare(from_object(lambda: described), device, iterations=iterations)
        equal = [torch.equal(batch.args[0], x) for batch in session.batches]
    assert equal == [iterations > 3] + [False] * (iterations - 1)


def host_events(step: Callable[[torch.Tensor], Any]) -> list[tuple[str, str, str]]:
    """Kind, name and the text of the line."""
    recording = recorded(lambda: (step, (torch.rand(3, device="cuda"),)), iterations=2)
    return [
        (
            type(event).__struct_config__.tag,
            event.name,
            linecache.getline(__file__, event.location.line).strip(),
        )
        for event in recording.host
        if event.location is not None and event.location.file == __file__
    ]


def test_draws_and_clocks_of_the_users_code_are_found() -> None:
    own, numpys, draw = random.Random(3), np.random.default_rng(3), random.random

    def helper() -> float:
        return np.random.rand()

    def step(x: torch.Tensor) -> object:
        y = x * random.gauss(0, 1)
        y = y + draw()
        own.shuffle([1, 2])
        z = y + helper()
        scale = numpys.normal()
        torch.rand(2, device="cuda")
        return z * scale, time.perf_counter(), time.time_ns()

    assert host_events(step) == [
        ("host-random", "random.gauss()", "y = x * random.gauss(0, 1)"),
        ("host-random", "random.random()", "y = y + draw()"),
        ("host-random", "random.shuffle()", "own.shuffle([1, 2])"),
        ("host-random", "numpy.random", "return np.random.rand()"),
        ("host-random", "numpy.random.Generator", "scale = numpys.normal()"),
        (
            "host-time",
            "time.perf_counter()",
            "return z * scale, time.perf_counter(), time.time_ns()",
        ),
        ("host-time", "time.time_ns()", "return z * scale, time.perf_counter(), time.time_ns()"),
    ]


def test_a_draw_after_a_call_on_the_same_line_belongs_to_that_line() -> None:
    def helper(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def step(x: torch.Tensor) -> torch.Tensor:
        y = helper(x) * np.random.rand()
        return y

    assert host_events(step) == [
        ("host-random", "numpy.random", "y = helper(x) * np.random.rand()")
    ]


def test_watching_the_host_leaves_tracers_as_they_were() -> None:
    def tracer(*_: object) -> None:
        return None

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(tracer)
    try:
        host_events(lambda x: x * 2)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before[0])
    assert sys.getprofile() is before[1]


def test_outputs_of_float8_are_recorded_with_their_values() -> None:
    """Few operators of torch take them: neither `isfinite` nor `max` does."""
    seen = recorded(lambda: (lambda x: x.to(torch.float8_e4m3fn), (torch.full((4,), -3.0),)))
    (output,) = seen.captured[0].outputs
    assert output.sample is not None and not output.has_nan
    assert output.sample.values == (-3.0,) * 4 and output.sample.scale == 3.0


def test_optimizers_are_described() -> None:
    recording: Recording = recorded(lambda: build(["train"])[1], iterations=1)
    (optimizer,) = recording.optimizers
    assert (optimizer.class_name, optimizer.capturable, optimizer.fused, optimizer.lr_kind) == (
        "Adam", True, False, "float",
    )  # fmt: skip


def test_a_warm_step_runs_once_before_it_is_recorded_unless_it_asks_for_a_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The emulated device stands for a GPU: libraries have tuned themselves in the calls before."""
    monkeypatch.setattr(EmulatedDevice, "kind", "cuda")
    runs: list[Inputs] = []
    plain = session_module._Runs.plain

    def counted(self: session_module._Runs, inputs: Inputs) -> object:
        runs.append(inputs)
        return plain(self, inputs)

    monkeypatch.setattr(session_module._Runs, "plain", counted)

    def asking(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.cuda.is_current_stream_capturing() else x + x

    for step, expected in ((torch.neg, 1), (asking, 2)):
        with EmulatedDevice() as device:
            described = Description(step, inputs=Inputs((torch.ones(4, device="cuda"),)))
            origin = Origin("step", "", "a function")
            target = build_target(described, origin, mode=None, close=lambda: None)
            runs.clear()
            prepare(replace(target, is_warm=True, variation=None), device, iterations=2)
        assert len(runs) == expected
