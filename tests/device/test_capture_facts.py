"""What a real GPU refused to capture is refused by the emulated device, and found by the diagnosis; nothing else."""

from __future__ import annotations

import importlib.util
import json
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.diagnose.diagnose import Diagnosis, diagnose
from tests.support.diagnosing import recorded
from tests.support.torch_versions import (
    MEASURED_WITH,
    STORES_NUMBERS_BY_FILLING,
    VERSION,
    WHY_FILLING,
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIMITS = BENCHMARKS.parent / "docs" / "limits.md"
MEASURED = BENCHMARKS / "data" / "capture_facts_h200_torch2.11.jsonl"

# Where the emulated device, or the diagnosis, may say something else than the H200, and why.
NOT_EMULATED = {
    "warm_up_on_default_stream_kept_alive": "autograd does not tell which stream it made its "
    "accumulation of gradients on, nor that a graph from before keeps it alive",
}
NOT_DIAGNOSED: dict[str, str] = {}
if STORES_NUMBERS_BY_FILLING:  # the H200 was asked with a torch that copies them
    FILLED = dict.fromkeys(("element_assign_number", "index_assign_number"), WHY_FILLING)
    NOT_EMULATED |= FILLED
    NOT_DIAGNOSED |= FILLED
# What an older torch itself refuses, waits for, or lacks.
OTHERWISE_BEFORE = (
    frozenset(
        (
            "checkpoint_preserving", "checkpoint_reentrant_preserving", "d2h_into_pageable", "fork_rng",
            "get_rng_state", "h2d_into_pageable_non_blocking", "h2d_non_blocking_pageable",
            "initial_seed", "manual_seed_new", "manual_seed_same", "own_generator_state", "quantile",
            "set_rng_state", "set_rng_state_of_other_seed", "torch_manual_seed_new",
        )
    )
    if VERSION < MEASURED_WITH
    else frozenset()
)  # fmt: skip
# It could not be asked: torch 2.11 has no such kernel for CUDA, and refused the warm-up.
NOT_MEASURED = {"Adagrad_fused"}


def measured() -> dict[tuple[str, str], bool]:
    """Whether the H200 captured a step, by name and error mode."""
    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    return {(row["step"], row["mode"]): row["captures"] for row in rows if "captures" in row}


def facts() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "capture_facts", BENCHMARKS / "truth" / "capture_facts.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


H200 = measured()
FACTS = facts()
if not hasattr(torch, "_grouped_mm"):  # torch up to 2.7 has no such operator
    del FACTS.STEPS["grouped_mm_bf16"]
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
    of_today = set(FACTS.STEPS) - NOT_MEASURED
    measured_then = {name for name, _ in H200}
    assert of_today == measured_then or (VERSION < MEASURED_WITH and of_today < measured_then)
    assert {(name, mode) for name, mode in H200 if name in STEPS} == {
        (name, mode) for name in STEPS for mode in FACTS.MODES
    }


def test_the_mode_made_no_difference_to_a_gpu_where_one_thread_runs_the_step() -> None:
    assert all(len({H200[name, mode] for mode in FACTS.MODES}) == 1 for name in STEPS)


@every_step
def test_the_emulated_device_captures_what_a_gpu_captured(name: str) -> None:
    with EmulatedDevice():
        outcome: dict[str, Any] = FACTS.try_step(name, "global")
    agrees = outcome["captures"] == H200[name, "global"]
    may_differ(name, agrees=agrees)
    assert agrees != (name in NOT_EMULATED), outcome.get("error", "captured")


@cache
def diagnosis_of(name: str) -> Diagnosis:
    return diagnose(recorded(build(name), iterations=2))  # these steps are the same in each


@every_step
def test_the_diagnosis_finds_what_a_gpu_refused(name: str) -> None:
    diagnosis = diagnosis_of(name)
    fails = any(finding.effect == "capture-fails" for finding in diagnosis.findings)
    agrees = fails != H200[name, "thread_local"]
    may_differ(name, agrees=agrees)
    assert agrees != (name in NOT_DIAGNOSED) or name in OTHERWISE_BEFORE, messages(diagnosis)


def may_differ(name: str, *, agrees: bool) -> None:
    if name in OTHERWISE_BEFORE and not agrees:
        pytest.xfail(f"the H200 was asked with torch {MEASURED_WITH[0]}.{MEASURED_WITH[1]}")


def messages(diagnosis: Diagnosis) -> list[str]:
    return [f"{finding.rule}: {finding.message}" for finding in diagnosis.findings]


# Rows of docs/limits.md, and a step that is one of them.
ROWS = {
    "A01": "item", "A02": "tolist", "A03": "bool", "A04": "print", "A05": "cpu", "A06": "allclose",
    "A08": "tensor_index_0d", "A09": "nonzero", "A10": "masked_fill_cuda_scalar",
    "A11": "element_assign_number", "A12": "list_index", "A14": "repeat_interleave_tensor",
    "A15": "one_hot", "A16": "tensor_from_list", "A17": "h2d_blocking", "A18": "gaussian_nll",
    "A19": "multinomial", "A20": "inv", "A21": "isin_large", "A22": "pack_padded_sequence",
    "A23": "synchronize", "A24": "event_query", "A25": "pin_memory_new_block",
    "A27": "side_stream_not_joined", "A28": "wait_on_outside_work", "A29": "input_with_history",
    "A31": "manual_seed_changing", "A32": "own_generator_unregistered", "A34": "Adam",
    "A35": "sgd_tensor_lr", "A36": "grad_scaler", "A37": "batchnorm_momentum_none",
    "B17": "h2d_non_blocking_pageable", "B17b": "d2h_into_pageable",
    "B28": "side_stream_in_place_not_forked",
}  # fmt: skip
if STORES_NUMBERS_BY_FILLING:
    del ROWS["A11"]  # no hazard there


@pytest.mark.parametrize("row", ROWS)
def test_the_limits_page_names_the_rules_that_find_a_hazard(row: str) -> None:
    (found_by,) = re.findall(rf"^\| {row} \| [^|]* \| ([^|]*) \|", LIMITS.read_text(), re.M)
    found = {finding.rule for finding in diagnosis_of(ROWS[row]).findings}
    if found_by == "none":
        assert not found
    else:
        assert found
        assert found <= set(found_by.split(", "))
