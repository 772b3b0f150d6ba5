"""How often an analysis runs the step, and what each run is for: a run proves something, or it is left out."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import graphdoctor

# By the function of ours that asked for the run, the innermost first.
PURPOSES = {
    "settled": "other inputs",
    "prepare": "warm-up",
    "record_series": "recording",
    "seen_of_host": "host's draws",
    "capture_whole_step": "capture",
    "verify_regions": "regions",
    "eager_twin": "eager twin",
    "graph_modules": "modules watched",
    "carried_out": "first call",
    "replay_twin": "replay",
    "build": "captured piece by piece",
}


def purpose() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None:
        frame = frame.f_back
        if "/graphdoctor/" in frame.f_code.co_filename and frame.f_code.co_name in PURPOSES:
            return PURPOSES[frame.f_code.co_name]
    return "?"


def counted(tmp_path: Path, *, training: bool, reads: bool, tokens: bool = False) -> Counter[str]:
    """The runs of a step by purpose. A file counts them: an analysis puts everything in memory back."""
    log = os.open(tmp_path / "runs", os.O_CREAT | os.O_RDWR)

    def target() -> Any:
        first = nn.Embedding(8, 8) if tokens else nn.Linear(8, 8)
        model = nn.Sequential(first, nn.ReLU(), nn.Linear(8, 4)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> torch.Tensor:
            os.write(log, f"{purpose()}\n".encode())
            loss = model(x).sum()
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if reads:
                loss.item()
            return loss.detach()

        inputs = ((torch.randint(8, (4,)) if tokens else torch.randn(4, 8)).cuda(),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer])

    try:
        graphdoctor.analyze(target, device="emulated")
        return Counter((tmp_path / "runs").read_text().splitlines())
    finally:
        os.close(log)


WITHOUT_STRATEGIES = {
    "warm-up": 2,  # state is made; it is found, by code that is captured
    "other inputs": 1,  # the step accepts other values
    "recording": 4,  # as eager, which is the eager twin too, and as captured: nothing asks which it is
    "host's draws": 1,  # Python's and NumPy's random numbers, and clocks
    "capture": 1,  # nothing in it is refused, and the tape that is replayed
}


def test_inference_runs_the_step_9_times(tmp_path: Path) -> None:
    runs = counted(tmp_path, training=False, reads=False)
    assert runs == WITHOUT_STRATEGIES and runs.total() == 9


def test_whole_numbers_take_one_more_run(tmp_path: Path) -> None:
    """A second draw of them, to see whether the step takes another path: the first has run already."""
    runs = counted(tmp_path, training=False, reads=False, tokens=True)
    assert runs == WITHOUT_STRATEGIES | {"other inputs": 2}


def test_training_with_strategies_runs_the_step_23_times(tmp_path: Path) -> None:
    runs = counted(tmp_path, training=True, reads=True)
    assert runs == WITHOUT_STRATEGIES | {
        "regions": 4,  # the operators of the first are replayed with the values of three others
        "captured piece by piece": 1,  # the step is split at what cannot be captured
        "modules watched": 4,  # one for each depth at which modules are tried
        "first call": 1,  # what the modules' graphs leave behind
        "replay": 4,  # Python between the modules' graphs goes on
    }
    assert runs.total() == 23
