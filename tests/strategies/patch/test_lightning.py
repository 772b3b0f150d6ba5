"""A program whose loop is Lightning's gets a captured model inside its LightningModule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strategies.patch.test_changed_programs import patched, tried_in

PROGRAM = """\
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def block():
    return nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU())


class Classifier(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
model = Classifier(nn.Sequential(*[block() for _ in range(8)], nn.Linear(16, 4)))
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = Trainer(max_epochs=3, enable_model_summary=False, **quiet)
trainer.fit(model, DataLoader(data, batch_size=8))
print(round(trainer.callback_metrics["train_loss_epoch"].item(), 4))
"""


def test_the_model_of_a_lightning_module_is_captured(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    report = tried_in(file, patched(file))
    assert report.patch is not None and report.patch.status == "same results", report.patch
    captured = '+        self.net = graphdoctor.capture(self.net, mode="training")\n'
    assert captured in report.patch.diff
    assert "weight tensors after 24 steps are bitwise equal" in report.patch.tried
