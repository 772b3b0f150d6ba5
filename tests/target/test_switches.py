"""torch's switches, those for rounding within float32 among them: seen and put back however they were set before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphdoctor.proof.twins import deterministic_algorithms
from graphdoctor.target.state.globals import (
    KERNELS_OF_ATTENTION,
    PRECISIONS,
    SavedGlobals,
    keeping,
    read_precision,
    set_precision,
)

newer = pytest.mark.skipif(not PRECISIONS, reason="torch 2.9 brought these switches")


def all_of_them() -> list[str]:
    return [read_precision(switch) for switch in PRECISIONS]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    saved = SavedGlobals()
    yield
    saved.restore()


@newer
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


@newer
def test_what_follows_the_switch_of_all_still_does() -> None:
    saved = SavedGlobals()
    set_precision(("generic", "all"), "tf32")
    saved.restore()
    set_precision(("generic", "all"), "ieee")
    try:
        assert read_precision(("mkldnn", "matmul")) == "ieee"
    finally:
        set_precision(("generic", "all"), "none")


def test_a_proof_keeps_its_own_modes_while_state_is_put_back() -> None:
    saved = SavedGlobals()
    with deterministic_algorithms():
        saved.restore()
        assert torch.backends.cudnn.deterministic
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic
    assert not torch.are_deterministic_algorithms_enabled()
    with sdpa_kernel(SDPBackend.MATH), keeping(*KERNELS_OF_ATTENTION):
        saved.restore()
        assert not torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()


def test_kernels_of_attention_that_a_step_turned_off_are_put_back() -> None:
    saved = SavedGlobals()
    torch.backends.cuda.enable_flash_sdp(False)
    saved.restore()
    assert torch.backends.cuda.flash_sdp_enabled()
