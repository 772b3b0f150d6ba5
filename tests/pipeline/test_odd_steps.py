"""Steps that nobody wrote a rule for get the verdict that a GPU's own capture gives them."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import graphdoctor
from tests.support.torch_versions import MEASURED_WITH, VERSION

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS / "truth"))

import odd_steps  # noqa: E402

MEASURED = BENCHMARKS / "data" / "odd_steps_h200_torch2.11.jsonl"


def measured() -> dict[str, str]:
    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    return {row["step"]: row["raw"] for row in rows if "raw" in row}


H200 = measured()
# Each was called something else, or ended the analysis, when it was first tried.
TRIED = (
    "checkpoint_reentrant_with_dropout", "checkpoint_sequential", "checkpoint_with_dropout",
    "dropout_behind_a_state_that_is_set_back", "func_hessian", "func_linearize", "lazy_linear",
    "masked_tensor", "pruned", "wrapper_made_in_step", "wrapper_as_parameter", "subclass_that_counts",
    "storage_freed_between_steps", "lazy_batch_norm",
)  # fmt: skip
# And some that were right at once, of as many kinds as can be.
RIGHT = (
    "caught_sync", "data_parallel_of_one", "event_asked", "func_vmap_of_grad", "histogram_of_integers",
    "own_operator_that_reads", "pinned_copy_to_host", "sparse_csr_product", "weights_loaded_in_step",
    "work_in_a_pool_of_threads", "jagged_by_offsets", "grad_scaler_of_a_fused_optimizer",
    "weights_held_on_the_default_stream",
)  # fmt: skip
NEEDS_RANDOM_STATE = {name for name in TRIED if "dropout" in name or "sequential" in name}


@pytest.mark.parametrize("name", (*TRIED, *RIGHT))
def test_an_odd_step_is_called_safe_where_a_gpu_captures_it(name: str) -> None:
    if name in NEEDS_RANDOM_STATE and VERSION < MEASURED_WITH:
        pytest.xfail("this torch refuses to read the random generator's state in a capture")
    report = analyzed(name)
    assert (report.verdict == "safe") == (H200[name] == "captured"), report.reason


def test_what_keeps_an_accumulation_of_gradients_alive_is_named() -> None:
    (found,) = [one for one in analyzed("pruned").findings if one.rule == "GD117"]
    assert (
        "`model.weight` still references an AccumulateGrad node of an earlier step" in found.message
    )


def analyzed(name: str) -> Any:
    def build() -> object:
        step, inputs, *_ = odd_steps.STEPS[name]()
        return step, inputs

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return graphdoctor.analyze(build, device="emulated", strategies=())
