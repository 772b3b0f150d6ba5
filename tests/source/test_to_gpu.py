"""A program on the CPU -> the lines that move it to a GPU, and that program, which then runs there."""

from __future__ import annotations

from pathlib import Path

from graphdoctor.source.to_gpu import lines_on_gpu
from graphdoctor.values.program import CalledModule
from tests.support.programs import run

PROGRAM = """\
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

class Rows(Dataset):
    def __getitem__(self, index):
        return torch.zeros(3)
    def __len__(self):
        return 3

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.layer = torch.nn.Linear(3, 1)
    def forward(self, x):
        return self.layer(torch.nn.LayerNorm(3)(x * self.scale)) + torch.arange(1)

def batch(rows):
    x, y = map(torch.FloatTensor, rows)
    return x, torch.stack([y, torch.tensor(
        rows[1])]).mean(0)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(24, 3)), batch_size=2)
for i, (z,) in enumerate(loader):
    x, y = batch([[[1.0, 2.0, 3.0]], [[0.5]]])
    x = x + torch.from_numpy(np.ones(3)).float()
    loss = (net(torch.cat([x, z])) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.detach().numpy(), torch.zeros(1, device="cpu"))
"""
MOVED = {
    17: 'return self.layer(torch.nn.LayerNorm(3).to("cuda")(x * self.scale)) + torch.arange(1, device="cuda")',
    20: 'x, y = map(lambda x: torch.FloatTensor(x).to("cuda"), rows)',
    22: 'rows[1], device="cuda")]).mean(0)',
    26: 'loader = DataLoader(TensorDataset(torch.randn(24, 3, device="cuda")), batch_size=2)',
    29: 'x = x + torch.from_numpy(np.ones(3)).to("cuda").float()',
    34: 'print(loss.detach().cpu().numpy(), torch.zeros(1, device="cpu"))',
}
ADDED = {24: 'net.to("cuda")', 27: 'z = z.to("cuda")'}


def test_a_program_with_these_lines_runs_on_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM, encoding="utf-8")
    found = [*lines_on_gpu([str(file)], [CalledModule("Net", "net", str(file), 24)])]
    assert {one.line: one.code for one in found if not one.is_added} == MOVED
    assert {one.line: one.code for one in found if one.is_added} == ADDED
    lines = PROGRAM.splitlines()
    for one in reversed(found):
        old = lines[one.line - 1]
        margin = " " * (len(old) - len(old.lstrip()) + 4 * old.endswith(":"))
        if one.is_added:
            lines.insert(one.line, f"{margin}{one.code}")
        else:
            lines[one.line - 1] = f"{margin}{one.code}"
    moved = tmp_path / "moved.py"
    moved.write_text("\n".join(lines), encoding="utf-8")
    (step,) = run(moved).report.steps
    assert step.report is not None and step.mode == "training"
