"""Ordinary steps, mostly training, with little or nothing to report."""

from __future__ import annotations

import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from tests.steps.making import data, steps_of


def _training(model, make_optimizer, *, accumulate=False, before_step=None):
    model = model.cuda()
    optimizer = make_optimizer(model.parameters())

    def step(x):
        optimizer.zero_grad(set_to_none=not accumulate)
        loss = model(x).square().mean()
        loss.backward()
        if before_step is not None:
            before_step(model)
        optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer])


def plain_training():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 4))
    return _training(model, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01))


def training_with_kept_gradients():
    return _training(
        nn.Linear(8, 4), lambda p: torch.optim.SGD(p, lr=0.1, foreach=False), accumulate=True
    )


def clipped_training():
    return _training(
        nn.Linear(8, 4),
        lambda p: torch.optim.SGD(p, lr=0.1),
        before_step=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    )


def capturable_adamw():
    return _training(
        nn.Linear(8, 4),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1, device="cuda"), capturable=True),
    )


def fused_adam():
    return _training(
        nn.Linear(8, 4), lambda p: torch.optim.Adam(p, lr=0.1, fused=True, capturable=True)
    )


def recurrent_training():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 8, batch_first=True)

        def forward(self, x):
            return self.lstm(x.unsqueeze(0))[0]

    return _training(Net(), lambda p: torch.optim.SGD(p, lr=0.1))


def timed_step():
    times = []

    def step(x):
        begin = time.perf_counter()
        y = x @ x.T
        times.append(time.perf_counter() - begin)
        return y

    return step, (data(),)


def returned_time():
    def step(x):
        return x * 2, time.time()  # <- GD208

    return step, (data(),)


def autocast_training():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.layer(x).float()

    return _training(Net(), lambda p: torch.optim.SGD(p, lr=0.1))


def scaled_training():
    model = nn.Linear(8, 8).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sc = torch.amp.GradScaler("cuda")

    def step(x):
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).float().square().mean()
        sc.scale(loss).backward()
        sc.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        sc.step(opt)  # <- GD112
        sc.update()
        return loss

    return steps_of(step, model, opt, sc)


def plain_adam():
    model = nn.Linear(8, 8).cuda()
    opt = torch.optim.Adam(model.parameters(), lr=0.1, foreach=False)

    def step(x):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()  # <- GD111

    return steps_of(step, model, opt)


def scheduler_outside_the_step():
    model = nn.Linear(8, 8).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    sch = torch.optim.lr_scheduler.StepLR(opt, 100)

    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return steps_of(step, model, opt, sch)


def transformer_inference():
    m = (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        .cuda()
        .eval()
    )

    def step(x):
        return m(x)

    return steps_of(step, m, inputs=(data(2, 4, 8),))


def transformer_training():
    m = (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        .cuda()
        .train()
    )
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    return steps_of(step, m, opt, inputs=(data(2, 4, 8),))


def classifier_training():
    m = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10)).cuda()
    opt = torch.optim.RMSprop(m.parameters(), lr=torch.tensor(0.1, device="cuda"), capturable=True)

    def step(x):
        opt.zero_grad()
        loss = F.cross_entropy(m(x).flatten(0, 1), x.flatten())
        loss.backward()
        opt.step()
        return loss

    return steps_of(step, m, opt, inputs=(torch.randint(0, 10, (2, 4), device="cuda"),))
