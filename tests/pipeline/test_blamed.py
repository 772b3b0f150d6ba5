"""The smallest script of a target whose replays are wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from graphdoctor.pipeline.blamed import blame_target
from graphdoctor.values.options import AnalyzeOptions
from tests.support import warm

ROOT = Path(__file__).parents[2]
RNN = """\
import torch


class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("hidden", torch.zeros(4, 8))

    def forward(self, x):
        self.hidden = torch.tanh(self.linear(x) + self.hidden)
        return self.hidden * 2


def graphdoctor_target():
    return Cell(), torch.randn(4, 8)
"""


def blamed(target: Path) -> str:
    options = AnalyzeOptions(device="emulated")
    return blame_target(str(target), options, lambda _: None) or ""


@pytest.mark.parametrize(
    ("model", "operator", "line"),
    [
        ("scheduled_scale", "aten.mul.Tensor", "scale"),  # computed from an attribute
        ("lr_schedule", "aten._foreach_add_.List", "lr"),  # an optimizer's option
    ],
)
def test_a_number_that_changes_with_each_step_is_blamed(
    model: str, operator: str, line: str
) -> None:
    script = blamed(ROOT / "sample_models" / f"{model}.py")
    assert script.count("torch.ops.") == 1 and f"torch.ops.{operator}(" in script
    assert f"captured_{line}, {line} = " in script


def test_a_state_that_each_step_rebinds_is_blamed(tmp_path: Path) -> None:
    file = tmp_path / "cell.py"
    file.write_text(RNN)
    script = blamed(file)
    assert script.count("torch.ops.") == 1 and f"aten.add.Tensor ({file}:11)" in script


def test_a_target_that_is_right_has_no_script(tmp_path: Path) -> None:
    file = tmp_path / "cell.py"
    file.write_text(
        RNN.replace("self.hidden = torch.tanh(", "self.hidden.copy_(torch.tanh(").replace(
            "+ self.hidden)", "+ self.hidden))"
        )
    )
    assert blamed(file) == ""


@pytest.mark.parametrize("model", ["lr_schedule", "gelu"])
def test_analyze_writes_a_script_of_a_wrong_replay(tmp_path: Path, model: str) -> None:
    script = tmp_path / "blamed.py"
    command = warm.command(
        warm.CLI, "analyze", "--device", "emulated", "--strategies", "none", "--blame", str(script),
        str(ROOT / "sample_models" / f"{model}.py"),
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    if model == "gelu":
        assert "blame: no replay of the whole step was wrong" in done.stderr
        assert not script.exists()
        return
    assert f"blame: written to {script}" in done.stderr
    command = warm.command(warm.CLI, "audit", "--device", "emulated", str(script))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, "The replay differs from eager.\n")
