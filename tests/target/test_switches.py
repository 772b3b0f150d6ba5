"""torch's newer switches for rounding within float32: seen and put back however they were set before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from graphdoctor.target.state.globals import (
    PRECISIONS,
    SavedGlobals,
    read_precision,
    set_precision,
)

pytestmark = pytest.mark.skipif(not PRECISIONS, reason="torch 2.9 brought these switches")


def all_of_them() -> list[str]:
    return [read_precision(switch) for switch in PRECISIONS]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    saved = SavedGlobals()
    yield
    saved.restore()


@pytest.mark.parametrize("before", [("cuda", "matmul"), ("cuda", "rnn"), ("generic", "all")])
def test_what_a_step_sets_is_put_back(before: tuple[str, str]) -> None:
    set_precision(before, "ieee")
    known = all_of_them()
    saved = SavedGlobals()
    set_precision(
        ("cuda", "conv"), "tf32" if read_precision(("cuda", "conv")) == "ieee" else "ieee"
    )
    set_precision(("generic", "all"), "tf32")
    torch.set_float32_matmul_precision("high")
    assert all_of_them() != known
    saved.restore()
    assert all_of_them() == known


def test_what_follows_the_switch_of_all_still_does() -> None:
    saved = SavedGlobals()
    set_precision(("generic", "all"), "tf32")
    saved.restore()
    set_precision(("generic", "all"), "ieee")
    try:
        assert read_precision(("mkldnn", "matmul")) == "ieee"
    finally:
        set_precision(("generic", "all"), "none")
