"""An agent that knows nothing but the JSON: apply the edits of the first finding, run again, until SAFE."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import warm

HEAD = """\
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("average", torch.zeros(8, 4))

    def forward(self, x):
"""
TAIL = """
def target():
    return Model(), (torch.randn(8, 4),)
"""
BODIES = {
    "read": ["total = x.abs().sum().item()", "return self.linear(x) / total"],
    "branch": ["loss = self.linear(x).square().mean()", "if loss > 1.0:", "    loss = loss * 0.5", "return loss"],
    "assertion": ["y = self.linear(x)", "assert torch.isfinite(y).all(), 'é'", "return y"],
    "state": ["self.average = 0.9 * self.average + 0.1 * x", "return self.linear(x - self.average)"],
    "copies": ["y = x + torch.arange(4).to(x.device)", "return y[:, [-1]] * 2"],
    "all": [
        "scale = float(x.abs().mean())",
        "y = self.linear(x) / scale",
        "torch.cuda.synchronize()",
        "a, b = y.square().mean(), y.mean()",
        "losses = torch.tensor([a, b], device=x.device)",
        "inverse = torch.linalg.inv(y.T @ y + torch.eye(4, device=x.device))",
        "return losses.sum() + inverse.sum()",
    ],
}  # fmt: skip


def analyzed(file: Path) -> dict[str, Any]:
    command = warm.command(
        warm.CLI,
        "analyze",
        f"{file}:target",
        "--json",
        "-",
        "--device",
        "emulated",
        "--strategies",
        "none",
    )
    done = subprocess.run(command, capture_output=True, text=True, cwd=file.parent)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def apply(edits: list[dict[str, Any]]) -> None:
    """From the last one to the first: the ranges of those before stay valid."""
    for edit in sorted(
        edits, key=lambda one: (one["start_line"], one["start_column"]), reverse=True
    ):
        file = Path(edit["file"])
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        first, last = edit["start_line"] - 1, edit["end_line"] - 1
        before, after = (
            lines[first][: edit["start_column"] - 1],
            lines[last][edit["end_column"] - 1 :],
        )
        lines[first : last + 1] = [before + edit["new_text"] + after]
        file.write_text("".join(lines), encoding="utf-8")


@pytest.mark.parametrize("body", BODIES)
def test_an_agent_that_applies_the_edits_ends_at_a_safe_step(body: str, tmp_path: Path) -> None:
    file = tmp_path / "step.py"
    file.write_text(
        HEAD + "".join(f"        {line}\n" for line in BODIES[body]) + TAIL, encoding="utf-8"
    )
    report = analyzed(file)
    assert report["verdict"] != "safe"
    for _ in range(8):
        edits = next((found["edits"] for found in report["findings"] if found["edits"]), None)
        if edits is None:
            break
        apply(edits)
        report = analyzed(file)
    left = [(found["rule"], found["location"]["line"]) for found in report["findings"]]
    assert report["verdict"] == "safe", f"{left}: {file.read_text(encoding='utf-8')}"
