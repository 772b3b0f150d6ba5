"""A Lightning module, trained by Lightning's Trainer."""

import torch
import torch.nn.functional as F
from torch import nn

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


L.seed_everything(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
trainer = L.Trainer(
    max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, log_every_n_steps=4,
)  # fmt: skip
model = Classifier()
trainer.fit(model, loader)
print(f"last loss {trainer.callback_metrics['train_loss']:.6f}")
