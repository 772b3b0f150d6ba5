"""Steps with known hazards, each as people write them; the lines to report end in `# <- GDxxx`."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def data(*shape):
    return torch.randn(*(shape or (4, 8)), device="cuda")


# ---- host reads and what they decide


def read_then_branch():
    def step(x):
        total = x.sum().item()  # <- GD107
        y = x * 2
        if total > 0:
            y = y + 1
        return y

    return step, (data(),)


def read_in_a_helper():
    def is_large(x):
        return bool(x.sum() > 0)  # <- GD107

    def step(x):
        if is_large(x):
            return x * 2
        return torch.sin(x)

    return step, (data(),)


def read_as_a_factor():
    def step(x):
        return x / x.abs().max().item()  # <- GD101

    return step, (data(),)


def read_as_a_size():
    def step(x):
        kept = int((x[0] > 0).sum())  # <- GD101
        y = x[:, :kept]
        return (y * 2).sum(dim=1)

    return step, (data(),)


def read_of_a_list():
    def step(x):
        firsts = x[0].tolist()  # <- GD101
        return x + sum(firsts)

    return step, (data(),)


def read_twice_on_a_line():
    def step(x):
        low, high = x.min().item(), x.max().item()  # <- GD101
        return (x - low) / (high - low)

    return step, (data(),)


def early_return():
    def step(x):
        loss = x.square().mean()
        if loss.item() > 1.0:  # <- GD107
            return loss
        return torch.sin(x).sum()

    return step, (data(),)


def loop_until_small():
    def step(x):
        while x.abs().max() > 1:  # <- GD107
            x = x / 2
        return x + 1

    return step, (data(),)


def loop_over_a_count():
    def step(x):
        for _ in range(int((x[0] > 0).sum())):  # <- GD107
            x = torch.sin(x)
        return x

    return step, (data(),)


def assertion():
    def step(x):
        assert torch.isfinite(x).all()  # <- GD107
        return x * 2

    return step, (data(),)


def conditional_expression():
    def step(x):
        return torch.sin(x) if x.sum() > 0 else torch.cos(x)  # <- GD107

    return step, (data(),)


def branch_in_training():
    model = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        y = model[0](x)
        if y.sum().item() > 0:  # <- GD107
            y = model[1](y)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer])


def one_hot():
    def step(x):
        return F.one_hot(x.argmax(dim=1), 8).sum(dim=0)  # <- GD101

    return step, (data(),)


def checked_distribution():
    def step(x):
        mean = x.mean(dim=0)
        return torch.distributions.Normal(mean, torch.ones_like(mean)).log_prob(x)  # <- GD101

    return step, (data(),)


def printed_loss():
    def step(x):
        loss = x.square().mean()
        print(loss)  # <- GD102
        return loss

    return step, (data(),)


def formatted_loss():
    def step(x):
        loss = x.square().mean()
        text = f"{loss:.3f}"  # <- GD102
        return loss, text

    return step, (data(),)


def logged_number():
    def step(x):
        loss = x.square().mean()
        print(loss.item())  # <- GD101
        return loss

    return step, (data(),)


# ---- copies


def branch_on_a_copy():
    def step(x):
        positive = (x.sum() > 0).cpu()  # <- GD103
        if positive:
            return x * 2
        return torch.sin(x)

    return step, (data(),)


def computed_on_the_host():
    def step(x):
        host = x.detach().cpu()  # <- GD103
        order = host.sum(dim=1).sort().values
        return x + order.to(x.device)[:, None]  # <- GD104

    return step, (data(),)


def round_trip_on_one_line():
    def step(x):
        return x + x.sum(dim=1).cpu().sort().values.cuda()[:, None]  # <- GD103

    return step, (data(),)


def index_by_list():
    def step(x):
        return x[[0, 2]]  # <- GD104

    return step, (data(),)


def index_by_host_tensor():
    rows = torch.tensor([0, 2])

    def step(x):
        return x[rows] * 2  # <- GD104

    return step, (data(),)


def filled_at_an_index():
    rows = torch.tensor([0, 2], device="cuda")

    def step(x):
        y = x.clone()
        y[rows] = 0  # <- GD104
        return y

    return step, (data(),)


def filled_by_a_mask():
    def step(x):
        y = x.clone()
        y[y > 0] = 0.0
        return y.masked_fill(y < -1, 2.0)

    return step, (data(),)


def assigned_by_a_mask():
    def step(x):
        y = x.clone()
        y[y > 0] = torch.zeros(int(2 * 4), device="cuda")[0]  # <- GD106
        return y

    return step, (data(),)


def array_from_numpy():
    def step(x):
        weights = torch.from_numpy(np.ones(8, dtype=np.float32))
        return x * weights.to(x.device)  # <- GD104

    return step, (data(),)


def number_from_python():
    def step(x):
        return x * torch.tensor(0.5, device=x.device)  # <- GD105

    return step, (data(),)


def new_tensor():
    def step(x):
        return x + x.new_tensor([1.0] * 8)  # <- GD105

    return step, (data(),)


def pinned_input_copied_ahead():
    staging = torch.zeros(8).pin_memory()

    def step(x):
        return x + staging.to(x.device, non_blocking=True)

    return step, (data(),)


# ---- shapes that depend on values


def masked_loss():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        y = model(x)
        loss = y[x > 0].square().mean()  # <- GD106
        loss.backward()
        optimizer.step()
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer])


def nonzero_rows():
    def step(x):
        rows = (x[:, 0] > 0).nonzero().squeeze(1)  # <- GD106
        return x.index_select(0, rows).sum(dim=0) / rows.shape[0]

    return step, (data(),)


def repeated_rows():
    counts = torch.tensor([1, 2, 0, 1], device="cuda")

    def step(x):
        return x.repeat_interleave(counts, dim=0)  # <- GD106

    return step, (data(),)


def repeated_to_a_known_size():
    counts = torch.tensor([1, 2, 0, 1], device="cuda")

    def step(x):
        return x.repeat_interleave(counts, dim=0, output_size=4)

    return step, (data(),)


# ---- hidden synchronisation


def inverse():
    def step(x):
        return torch.linalg.inv(x @ x.T + torch.eye(4, device=x.device))  # <- GD114

    return step, (data(),)


def unchecked_inverse():
    def step(x):
        return torch.linalg.inv_ex(x @ x.T + torch.eye(4, device=x.device)).inverse

    return step, (data(),)


def random_normal():
    def step(x):
        return torch.normal(x, torch.ones_like(x))  # <- GD114

    return step, (data(),)


# ---- state on the host


def layer_drop():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)])

        def forward(self, x):
            for layer in self.layers:
                if random.random() < 0.5:  # <- GD207
                    continue
                x = layer(x)
            return x

    return Net().cuda(), (data(),)


def random_index():
    def step(x):
        row = np.random.randint(4)  # <- GD207
        return x - x[row]

    return step, (data(),)


def layer_drop_on_the_cpu():
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)]).cuda()

    def step(x):
        for layer in layers:
            skip = torch.rand([])  # <- GD209
            if skip < 0.5:
                continue
            x = layer(x)
        return x

    return SimpleNamespace(step=step, inputs=(data(),), state=[layers])


def noise_from_the_cpu():
    def step(x):
        noise = torch.rand(())  # <- GD209
        return x * noise

    return step, (data(),)


def noise_copied_over():
    def step(x):
        noise = torch.randn(8)
        return x + noise.cuda()  # <- GD104

    return step, (data(),)


def alternating_loss():
    state = SimpleNamespace(calls=0)

    def step(x):
        state.calls += 1
        y = x * 2
        if state.calls % 2 == 0:  # <- GD201
            y = y + torch.sin(x)
        return y

    return SimpleNamespace(step=step, inputs=(data(),), state=[state])


def rounds_by_a_counter():
    state = SimpleNamespace(calls=0)

    def step(x):
        state.calls += 1
        for _ in range(state.calls % 3):  # <- GD201
            x = torch.sin(x)
        return x + 1

    return SimpleNamespace(step=step, inputs=(data(),), state=[state])


def position_in_a_cache():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.randn(32, 8))
            self.position = 0

        def forward(self, x):
            self.position += 1
            seen = self.cache[: self.position]  # <- GD202
            return x + seen.sum(dim=0)

    return Net().cuda(), (data(),)


def row_of_a_table():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(64, 8))
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x + self.table[self.calls]  # <- GD203

    return Net().cuda(), (data(),)


def written_optimizer():
    model = nn.Linear(8, 8).cuda()
    state = SimpleNamespace(calls=0)

    def step(x):
        state.calls += 1
        loss = model(x).square().mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.sub_(grad, alpha=0.1 / (1 - 0.9**state.calls))  # <- GD203
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, state])


def scaled_loss_in_training():
    model = nn.Linear(8, 8).cuda()
    state = SimpleNamespace(calls=0)

    def step(x):
        state.calls += 1
        model.zero_grad()
        loss = model(x).square().mean() * (0.5**state.calls)  # <- GD203
        loss.backward()
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, state])


def scheduled_adam():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, capturable=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()  # <- GD204
        scheduler.step()
        return loss

    return SimpleNamespace(step=step, inputs=(data(),), state=[model, optimizer, scheduler])


def changing_cpu_scalar():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 1.0

        def forward(self, x):
            self.scale *= 0.5
            return x * torch.tensor(self.scale)  # <- GD211

    return Net().cuda(), (data(),)


def cpu_scalar_input():
    def step(x, scale):
        return x * scale  # <- GD211

    def inputs():
        return data(), torch.rand(())

    return SimpleNamespace(step=step, inputs=inputs)


def constant_cpu_scalar():
    half = torch.tensor(0.5)

    def step(x):
        return x * half + x * torch.tensor(2.0)

    return step, (data(),)


# ---- addresses


def hidden_state():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.Linear(8, 8)
            self.register_buffer("hidden", torch.zeros(4, 8))

        @torch.no_grad()
        def forward(self, x):
            self.hidden = torch.tanh(x + self.cell(self.hidden))  # <- GD205
            return self.hidden * 2

    return Net().cuda(), (data(),)


def list_of_states():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        @torch.no_grad()
        def forward(self, x):
            self.seen.append(x.mean(dim=0))
            return torch.stack(self.seen).sum(dim=0)  # <- GD206

    return Net().cuda(), (data(),)


def state_updated_in_place():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("hidden", torch.zeros(4, 8))

        @torch.no_grad()
        def forward(self, x):
            self.hidden.copy_(torch.tanh(x + self.hidden))
            return self.hidden * 2

    return Net().cuda(), (data(),)


def lazily_cached_constant():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = None

        def forward(self, x):
            if self.mask is None:
                self.mask = torch.ones(8, 8, device=x.device).triu()
            return x @ self.mask

    return Net().cuda(), (data(),)


def inplace_activation_on_the_input():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)).cuda()

    def step(x):
        return model(x)  # <- GD210

    return SimpleNamespace(step=step, inputs=(data(),), state=[model])


# ---- ordinary training: nothing to report


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


STEPS = tuple(
    value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
    if name != "data"
)
