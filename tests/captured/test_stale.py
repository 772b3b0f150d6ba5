"""What a forward reads beside its attributes: a change of it is eager, or nothing is captured."""

from __future__ import annotations

import builtins
import copy
import decimal
import io
import logging
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable
from configparser import ConfigParser
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from tests.support import captured_models
from tests.support.captured_models import assert_equal, rand, replayed, why
from tests.support.emulated import device as device

_LOCAL = threading.local()


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


_GAIN = 2.0
_halved = partial(torch.mul, other=0.5)
_settings = ConfigParser()
_settings["of"] = {"gain": "2"}


@torch.library.custom_op("tests_captured_stale::gained", mutates_args=())
def _gained(x: torch.Tensor) -> torch.Tensor:
    return x * (_GAIN + torch.backends.cudnn.allow_tf32)


class _Config:
    gain = 1.0


class _Other:
    gain = 2.0


Forward = Callable[[Any, torch.Tensor], Any]


class Reading(nn.Module):
    """Reads in its forward what `reads` says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(8.0) + 1)
        self.config = _Config()
        self.text = io.StringIO("2")
        self.long = torch.full((100,), 2.0, device="cpu")
        self.items = iter([1.0, 2.0, 3.0])
        self.draws = torch.Generator().manual_seed(3)
        self.log = logging.getLogger("tests.captured.stale")


def _model(reads: Forward) -> Any:
    kind = type("Reads", (Reading,), {"forward": lambda self, x: self.layer(x) * reads(self, x)})
    return kind().cuda().eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("reads", "change", "named"),
    [
        (lambda m, x: _doubled(x), "_doubled.__code__ = _tripled.__code__", "__code__"),
        (lambda m, x: F.softplus(x), "F.softplus = torch.tanh", "softplus"),
        (lambda m, x: math.sqrt(4), "math.sqrt = lambda value: 7.0", "math.sqrt"),
        (lambda m, x: m.config.gain, "m.config.gain = 2.0", "config.gain"),
        (lambda m, x: m.config.gain, "m.config.__class__ = _Other", "from _Config to _Other"),
        (lambda m, x: m.table.sum(), "m.table.data = m.table.data[:4]", "shape of"),
        (lambda m, x: m.table.sum(), "m.table.resize_(4)", "shape of"),
        (lambda m, x: x @ m.layer.weight, "m.layer.weight.t_()", "strides of"),
        (lambda m, x: float(m.text.getvalue()), "m.text.write('3')", "text"),
        (lambda m, x: m.long[70].item(), "m.long.fill_(3)", "long"),
        (lambda m, x: m.long[70].item(), "m.long.data.fill_(3)", "long"),
        (lambda m, x: m.long[70].item(), "m.long.numpy()[70] = 3", "long"),
        (lambda m, x: m.long[::7][10].item(), "m.long.data[70] = 3", "long"),
        (lambda m, x: _gained(x), "_doubled.__globals__['_GAIN'] = 5.0", "_GAIN"),
        (lambda m, x: getattr(m.table, "scale", 1.0), "m.table.scale = 2.0", "scale"),
        (
            lambda m, x: float(os.environ.get("OF_A_TEST", 1)),
            "os.environ['OF_A_TEST'] = '2'",
            "OF_A",
        ),
        (
            lambda m, x: float(decimal.Decimal(1) / decimal.Decimal(3)),
            "decimal.getcontext().prec = 3",
            "decimal",
        ),
        (
            lambda m, x: 2 if m.layer.weight.requires_grad else 3,
            "m.table.requires_grad_()",
            "requires_grad of",
        ),
        (lambda m, x: m.log.getEffectiveLevel(), "m.log.setLevel(7)", "level"),
        (
            lambda m, x: 2 if m.table.grad is None else 3,
            "m.table.grad = torch.ones(8)",
            "grad of a tensor of the model",
        ),
        (lambda m, x: m.config.gain, "m.config.__dict__ = {'gain': 2.0}", "config.__dict__"),
        (
            lambda m, x: _halved(x),
            "_halved.__setstate__((torch.mul, (), {'other': 3}, {}))",
            "_halved",
        ),
        (lambda m, x: float(_settings["of"]["gain"]), "_settings.set('of', 'gain', '3')", "gain"),
        (lambda m, x: next(copy.copy(m.items)), "next(m.items)", "items"),
        (
            lambda m, x: abs(-3.0),
            "import builtins; builtins.abs = lambda value: 9.0",
            "abs changed",
        ),
        (  # as many names as before
            lambda m, x: round(3.0),
            "_doubled.__globals__.update(round=lambda v: 9.0); _doubled.__globals__.pop('_SPARE')",
            "round is new",
        ),
        (lambda m, x: m.draws.initial_seed(), "m.draws.manual_seed(7)", "draws"),
        (
            lambda m, x: len(warnings.filters),
            "warnings.filters.append(('error', None, ImportWarning, None, 0))",
            "warnings.filters",
        ),
        (lambda m, x: m.table.sum(), "m.__dict__ = {**vars(m), 'table': m.table * 2}", "__dict__"),
        (
            lambda m, x: float(len(threading.current_thread().name)),
            "threading.current_thread().name = 'another'",
            "the thread or its name",
        ),
        (
            lambda m, x: sys.modules["tests.support.captured_models"].GAIN,
            "sys.modules['tests.support.captured_models'].GAIN = 5.0",
            "GAIN",
        ),
        (lambda m, x: 1.0, "nn.Linear.forward = lambda self, x: x * 2", "Linear.forward"),
    ],
)
def test_a_change_of_what_the_forward_reads_is_eager(
    device: EmulatedDevice,
    monkeypatch: pytest.MonkeyPatch,
    reads: Forward,
    change: str,
    named: str,
) -> None:
    monkeypatch.setattr(F, "softplus", F.softplus)
    monkeypatch.setattr(math, "sqrt", math.sqrt)
    monkeypatch.setattr(nn.Linear, "forward", nn.Linear.forward)
    monkeypatch.setattr(_doubled, "__code__", _doubled.__code__)
    monkeypatch.setenv("OF_A_TEST", "1")
    monkeypatch.setitem(globals(), "_GAIN", 2.0)
    monkeypatch.setattr(builtins, "abs", abs)
    monkeypatch.setitem(globals(), "_SPARE", 0)
    monkeypatch.setattr(warnings, "filters", [*warnings.filters])
    monkeypatch.setattr(captured_models, "GAIN", 2.0, raising=False)
    monkeypatch.setitem(globals(), "_halved", partial(torch.mul, other=0.5))
    monkeypatch.setattr(threading.current_thread(), "name", "a thread")
    m = _model(reads)
    with decimal.localcontext():
        fast = graphdoctor.capture(m, rand(3, 4))
        assert fast.plan.how == "whole"
        assert_equal(fast, m, rand(3, 4))
        exec(change, {**globals(), "m": m})
        for _ in range(2):
            assert_equal(fast, m, rand(3, 4))
    globals().pop("round", None)
    assert replayed(fast) == 1 and named in why(fast)


def _leads_on() -> torch.Tensor:
    with torch.enable_grad():
        return rand(3, 4).requires_grad_() * 2


def _with_scale() -> torch.Tensor:
    made = rand(3, 4)
    made.scale = 3.0  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    ("reads", "other"),
    [
        (lambda m, x: 2 if x.is_leaf else 3, _leads_on),
        (lambda m, x: 1 + x.storage_offset(), lambda: rand(6, 4)[3:]),
        (lambda m, x: getattr(x, "scale", 1.0), _with_scale),
        (lambda m, x: 2 if x.requires_grad else 3, lambda: rand(3, 4).requires_grad_()),
        (
            lambda m, x: 2 if isinstance(x, nn.Parameter) else 3,
            lambda: nn.Parameter(rand(3, 4), requires_grad=False),
        ),
        (lambda m, x: 2 if x.is_neg() else 3, lambda: torch._neg_view(rand(3, 4))),
    ],
)
def test_an_input_that_tells_otherwise_is_eager(
    device: EmulatedDevice, reads: Forward, other: Callable[[], torch.Tensor]
) -> None:
    model = _model(reads)
    fast = graphdoctor.capture(model, rand(3, 4))
    assert_equal(fast, model, rand(3, 4))
    for _ in range(2):
        assert_equal(fast, model, other())
    assert replayed(fast) == 1 and len(fast.fallbacks) == 1


def test_an_input_that_is_the_model_s_own_is_eager_where_code_compares_identity(
    device: EmulatedDevice,
) -> None:
    model = _model(lambda m, x: 2 if x is m.given else 3)
    model.given = rand(3, 4)
    fast = graphdoctor.capture(model, rand(3, 4))
    for given, served in ((rand(3, 4), 1), (model.given, 1), (rand(3, 4), 2)):
        assert_equal(fast, model, given)
        assert replayed(fast) == served


def test_a_variable_of_an_enclosing_function_may_have_no_value_yet(device: EmulatedDevice) -> None:
    def reads(m: Any, x: torch.Tensor) -> float:
        try:
            return gain
        except NameError:
            return 1.0

    model = _model(reads)
    fast = graphdoctor.capture(model, rand(3, 4))
    assert_equal(fast, model, rand(3, 4))
    gain = 2.0
    assert_equal(fast, model, rand(3, 4))
    assert replayed(fast) == 1 and "gain of an enclosing function" in why(fast)


@pytest.mark.parametrize(
    ("reads", "mode"),
    [
        (lambda m, x: 2 if torch.is_grad_enabled() else 3, torch.enable_grad),
        (lambda m, x: 2 if torch.is_inference_mode_enabled() else 3, torch.inference_mode),
    ],
)
def test_code_that_asks_for_a_mode_is_eager_in_the_other(
    device: EmulatedDevice, reads: Forward, mode: Callable[[], AbstractContextManager[object]]
) -> None:
    model = _model(reads)
    fast = graphdoctor.capture(model, rand(3, 4))
    given, counts = rand(3, 4), []
    for within in (nullcontext, mode):
        with torch.no_grad(), within():
            assert torch.equal(fast(given), model(given))
        counts.append(replayed(fast))
    assert counts == [1, 1]


@pytest.mark.parametrize(
    ("reads", "switch"),
    [
        (lambda m, x: 2 + torch.backends.cudnn.allow_tf32, "cudnn_allow_tf32"),
        (lambda m, x: _gained(x), "cudnn_allow_tf32"),
        (lambda m, x: 2 + torch._C._get_nnpack_enabled(), "nnpack_enabled"),
        (
            lambda m, x: 2 + torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
            "math_sdp_allow_fp16_bf16_reduction",
        ),
    ],
)
def test_code_that_asks_for_a_switch_is_eager_with_the_other(
    device: EmulatedDevice, reads: Forward, switch: str
) -> None:
    ask, put = getattr(torch._C, f"_get_{switch}"), getattr(torch._C, f"_set_{switch}")
    model = _model(reads)
    fast = graphdoctor.capture(model, rand(3, 4))
    assert_equal(fast, model, rand(3, 4))
    was = ask()
    put(not was)
    try:
        assert_equal(fast, model, rand(3, 4))
    finally:
        put(was)
    assert replayed(fast) == 1 and "torch.backends changed" in why(fast)


@pytest.mark.parametrize("how", ["freed", "shorter"])
def test_memory_of_the_host_that_is_gone_is_not_read(device: EmulatedDevice, how: str) -> None:
    model = _model(lambda m, x: 2.0)
    fast = graphdoctor.capture(model, rand(3, 4))
    model.long.untyped_storage().resize_(0 if how == "freed" else 8)
    assert_equal(fast, model, rand(3, 4))
    assert replayed(fast) == 0 and "long" in why(fast)


def test_another_thread_has_other_locals(device: EmulatedDevice) -> None:
    _LOCAL.gain = 1.0
    model = _model(lambda m, x: getattr(_LOCAL, "gain", 5.0))
    fast = graphdoctor.capture(model, rand(3, 4))
    thread = threading.Thread(target=lambda: assert_equal(fast, model, rand(3, 4)))
    thread.start()
    thread.join()
    assert replayed(fast) == 0 and "the thread changed" in why(fast)


@pytest.mark.parametrize(
    ("held", "reads", "reason"),
    [
        (lambda: np.ones(1 << 20), lambda m: float(m.held[7]), "8 MB of the host's memory"),
        (
            lambda: np.array([SimpleNamespace(gain=1.0)], dtype=object),
            lambda m: m.held[0].gain,
            "array of objects",
        ),
    ],
)
def test_what_cannot_be_watched_is_not_captured(
    device: EmulatedDevice, held: Callable[[], Any], reads: Callable[[Any], Any], reason: str
) -> None:
    model = _model(lambda m, x: reads(m))
    model.held = held()
    fast = graphdoctor.capture(model, rand(3, 4))
    assert fast.plan.how == "eager" and reason in fast.explain()


def test_what_is_asked_outside_is_not_captured(device: EmulatedDevice, tmp_path: Any) -> None:
    path = tmp_path / "gain.txt"
    path.write_text("2")
    fast = graphdoctor.capture(_model(lambda m, x: float(path.read_text())), rand(3, 4))
    assert fast.plan.how == "eager" and "asks what lies outside it" in fast.explain()


def test_a_copy_of_an_object_changes_nothing(device: EmulatedDevice) -> None:
    model = _model(lambda m, x: m.config.gain)
    fast = graphdoctor.capture(model, rand(3, 4))
    copy.copy(model.config)  # Python keeps the names of slots in the class
    assert_equal(fast, model, rand(3, 4))
    assert replayed(fast) == 1
