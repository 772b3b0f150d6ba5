"""A slice of torch's op_db on the emulated device: each entry has a verdict or a named limit."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth"
if str(TRUTH) not in sys.path:
    sys.path.append(str(TRUTH))

from op_db import entry_name, load_op_db  # noqa: E402
from opinfo_emulated import (  # noqa: E402
    CAPABILITY,
    Outcome,
    examined,
)
from opinfo_emulated import VERDICTS as ORDER  # noqa: E402

# The worst verdict of the first and the last sample.
VERDICTS = {
    "__getitem__": "unsafe",
    "add": "safe",
    "argwhere": "unsafe",
    "as_strided": "nothing to capture",
    "baddbmm": "safe",
    "bincount": "unsafe",
    "cholesky": "unsafe",
    "cumsum": "safe",
    "einsum": "safe",
    "empty": "nothing to capture",
    "fft.rfft": "safe",
    "gather": "safe",
    "jiterator_unary": "limit",
    "linalg.inv": "unsafe",
    "linalg.inv_ex": "safe",
    "linalg.qr": "safe",
    "masked_select": "unsafe",
    "nn.functional.conv2d": "safe",
    "nn.functional.dropout": "nothing to capture",
    "nn.functional.one_hot": "unsafe",
    "nn.functional.scaled_dot_product_attention": "safe",
    "normal": "unsafe",
    "sort": "safe",
    "sparse.sampled_addmm": "unknown",
    "torch.ops.aten._flash_attention_forward": "unknown",
    "where": "safe",
}


@cache
def entries() -> dict[str, object]:
    return {entry_name(entry): entry for entry in load_op_db(CAPABILITY)}


@cache
def outcomes(name: str) -> tuple[Outcome, ...]:
    if name not in entries():
        pytest.skip(f"this torch has no entry {name}")
    return tuple(examined(entries()[name], 2))


@pytest.mark.parametrize("name", VERDICTS)
def test_an_entry_has_its_verdict(name: str) -> None:
    found = outcomes(name)
    assert max((outcome.verdict for outcome in found), key=ORDER.index) == VERDICTS[name], found


@pytest.mark.parametrize("name", VERDICTS)
def test_rules_and_the_emulated_machine_agree(name: str) -> None:
    assert [each for each in outcomes(name) if each.disagreement is not None] == []
