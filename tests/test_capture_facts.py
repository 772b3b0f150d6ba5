"""What a real GPU refused to capture is refused by the emulated device, and found by the diagnosis; nothing else."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from graphdoctor.diagnose import Diagnosis
from graphdoctor.emulator import EmulatedDevice
from tests.diagnosing import diagnosed

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MEASURED = BENCHMARKS / "data" / "capture_facts_h200_torch2.11.jsonl"

# Where the emulated device, or the diagnosis, may say something else than the H200, and why.
NOT_EMULATED = {
    "warm_up_on_default_stream_kept_alive": "autograd does not tell which stream it made its "
    "accumulation of gradients on, nor that a graph from before keeps it alive",
}
NOT_DIAGNOSED = {
    **NOT_EMULATED,
    "set_rng_state_of_other_seed": "the step sets its seed back only while it is not captured: "
    "where it always believes to be, the seed stays what it set",
}
# It could not be asked: torch 2.11 has no such kernel for CUDA, and refused the warm-up.
NOT_MEASURED = {"Adagrad_fused"}


def measured() -> dict[tuple[str, str], bool]:
    """Whether the H200 captured a step, by name and error mode."""
    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    return {(row["step"], row["mode"]): row["captures"] for row in rows if "captures" in row}


def facts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("capture_facts", BENCHMARKS / "capture_facts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


H200 = measured()
FACTS = facts()
STEPS = sorted(name for name in FACTS.STEPS if (name, "global") in H200)
every_step = pytest.mark.parametrize("name", STEPS)


@pytest.fixture(autouse=True)
def fresh_facts() -> Iterator[None]:
    """The steps share lists that hold tensors of one device: each test has its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the steps' own: deprecated forms, empty graphs
        yield
    for shared in (FACTS.STATE, FACTS.OFFSETS, FACTS.GRADED):
        shared.clear()


def build(name: str) -> Callable[[], object]:
    """A description of a target whose step is the fact's."""

    def description() -> object:
        FACTS.prepare()
        return FACTS.STEPS[name](), ()

    return description


def test_every_step_was_measured_in_both_modes() -> None:
    assert set(FACTS.STEPS) - NOT_MEASURED == {name for name, _ in H200}
    assert set(H200) == {(name, mode) for name in STEPS for mode in FACTS.MODES}


@pytest.mark.parametrize("mode", FACTS.MODES)
@every_step
def test_the_emulated_device_captures_what_a_gpu_captured(name: str, mode: str) -> None:
    with EmulatedDevice():
        outcome: dict[str, Any] = FACTS.try_step(name, mode)
    agrees = outcome["captures"] == H200[name, mode]
    assert agrees != (name in NOT_EMULATED), outcome.get("error", "captured")


@every_step
def test_the_diagnosis_finds_what_a_gpu_refused(name: str) -> None:
    diagnosis = diagnosed(build(name))
    fails = any(finding.effect == "capture-fails" for finding in diagnosis.findings)
    agrees = fails != H200[name, "thread_local"]
    assert agrees != (name in NOT_DIAGNOSED), messages(diagnosis)


def messages(diagnosis: Diagnosis) -> list[str]:
    return [f"{finding.rule}: {finding.message}" for finding in diagnosis.findings]
