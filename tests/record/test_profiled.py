"""An analysis under a profiler, a tracer or a debugger, which it leaves as it was."""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest
import torch

import graphdoctor
from graphdoctor.values.errors import UsageError


def step(x: torch.Tensor) -> torch.Tensor:
    return x * float(np.random.rand())


def analyzed() -> list[str]:
    x = torch.randn(4)
    report = graphdoctor.analyze(step, x, device="emulated", strategies=(), iterations=2)
    return [found.rule for found in report.findings]


@pytest.fixture(scope="module")
def alone() -> list[str]:
    return analyzed()


def test_cprofile_goes_on_after_an_analysis(alone: list[str]) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        found = analyzed()
        sorted([2, 1])
    finally:
        profiler.disable()
    assert found == alone
    names = {name for _, _, name in pstats.Stats(profiler).stats}  # type: ignore[attr-defined]
    assert "<built-in method builtins.sorted>" in names


def nothing(frame: FrameType, event: str, arg: object) -> None:
    return None


@pytest.mark.parametrize(
    ("put", "look"), [(sys.setprofile, sys.getprofile), (sys.settrace, sys.gettrace)]
)
def test_a_hook_of_the_users_is_put_back(
    put: Callable[[object], None], look: Callable[[], object], alone: list[str]
) -> None:
    before = look()
    put(nothing)
    try:
        found, after = analyzed(), look()
    finally:
        put(before)
    assert (found, after) == (alone, nothing)


def test_a_misspelled_device_or_mode_is_one_sentence() -> None:
    with pytest.raises(UsageError) as said:
        graphdoctor.analyze(step, torch.randn(4), device="emulatd")  # type: ignore[arg-type]
    wanted = "device must be one of auto, cuda, emulated, not 'emulatd'; did you mean 'emulated'?"
    assert str(said.value) == wanted
    with pytest.raises(UsageError, match="mode must be one of inference, training, not 'train'"):
        graphdoctor.analyze(step, torch.randn(4), device="emulated", mode="train")  # type: ignore[arg-type]
