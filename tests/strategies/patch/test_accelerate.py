"""A training loop with Hugging Face's Accelerate is captured as any other loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strategies.patch.test_changed_programs import patched, tried_in

PROGRAM = """\
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
loader = DataLoader(TensorDataset(torch.randn(96, 16), torch.randint(0, 4, (96,))), batch_size=8)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total += loss.item()
    print(f"loss {total / len(loader):.4f}")
"""


def test_a_loop_with_accelerate_becomes_a_captured_step(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    report = tried_in(file, patched(file))
    assert report.patch is not None and report.patch.status == "same results", report.patch
    assert "+        loss = train_step(x, y)\n" in report.patch.diff
    assert "after 36 steps" in report.patch.tried
    replays = int(report.patch.tried.rpartition(" calls were replayed")[0].split()[-1])
    assert replays >= 24
