"""One target in a process of its own: on which device a rank of it runs."""

from __future__ import annotations

import os

import pytest
import torch

from graphdoctor.check import one_target
from graphdoctor.check.one_target import _as_rank
from graphdoctor.check.run_targets import Job, Place
from graphdoctor.values.errors import CannotDoItHere
from graphdoctor.values.options import AnalyzeOptions

TOLD_BY_TORCHRUN = {
    "RANK": "1", "LOCAL_RANK": "1", "GROUP_RANK": "0",
    "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1",
    "MASTER_PORT": "4321", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("device", "gpus", "runs_on"),
    [
        ("auto", 2, "a GPU"),  # as many as ranks
        ("auto", 3, "a GPU"),
        ("auto", 1, "emulated"),
        ("cuda", 2, "a GPU"),
        ("cuda", 1, "refused"),
        ("emulated", 2, "emulated"),
    ],
)
def test_a_rank_has_a_gpu_of_its_own_or_an_emulated_one(
    device: str, gpus: int, runs_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(one_target, "take_own_gpu", lambda: taken.append(True))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    job = Job(".", "net.py", AnalyzeOptions(device=device))  # type: ignore[arg-type]
    place = Place(1, 2, 4321)
    if runs_on == "refused":
        with pytest.raises(CannotDoItHere, match=r"--ranks 2 with --device cuda.* finds 1 here"):
            _as_rank(job, place)
        return
    found = _as_rank(job, place)
    assert found.options.device == ("emulated" if runs_on == "emulated" else device)
    assert taken == ([True] if runs_on == "a GPU" else [])
    told = {name: os.environ[name] for name in TOLD_BY_TORCHRUN}
    assert told == TOLD_BY_TORCHRUN
