"""Models of sequences that nothing was fitted to: recurrent, convolutional, attention, state spaces, experts.

Each function is a family of its own: plain PyTorch at usual sizes, with random weights.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

_BF16 = torch.bfloat16


def trained(model: nn.Module, loss_of, *inputs: torch.Tensor, fused: bool = True):
    """A training step of one model with Adam, ready for graphs."""
    model = model.cuda().train()
    options = {"fused": True} if fused else {"foreach": True}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True, **options)

    def step(*batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    state = {"model": model, "optimizer": optimizer}
    return SimpleNamespace(step=step, inputs=inputs, state=state)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def whole_numbers(most: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, most, shape, device="cuda")


class Forecast(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], seen: int = 16, width: int = 256) -> None:
        super().__init__()
        self.rnn = kind(seen, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, seen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0])


def lstm():
    """A forecast of sixteen series, trained."""

    def loss_of(model, x, y):
        return F.mse_loss(model(x), y)

    return trained(Forecast(nn.LSTM), loss_of, rand(64, 128, 16), rand(64, 128, 16))


def gru():
    """A tagger of tokens."""
    model = nn.Sequential(nn.Embedding(10_000, 16), Forecast(nn.GRU)).cuda().eval()
    return model, (whole_numbers(10_000, 32, 96),)


class Causal(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(width, width, 3, dilation=dilation)
        self.norm = nn.GroupNorm(1, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.norm(self.conv(F.pad(x, (self.pad, 0)))))


def tcn():
    """Dilated convolutions over a time series, trained."""
    layers = [Causal(64, 2**place) for place in range(8)]
    model = nn.Sequential(nn.Conv1d(8, 64, 1), *layers, nn.Conv1d(64, 1, 1))

    def loss_of(model, x, y):
        return F.smooth_l1_loss(model(x), y)

    return trained(model, loss_of, rand(32, 8, 512), rand(32, 1, 512))


class ConformerBlock(nn.Module):
    def __init__(self, width: int = 256, heads: int = 4, kernel: int = 15) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.SiLU(),
                nn.Linear(4 * width, width),
            )
            for _ in range(2)
        )
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.heads = nn.Linear(width, width), heads
        self.before, self.expand = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.between, self.project = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.last = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.first(x)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        seen = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        )
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = F.glu(self.expand(self.before(x).transpose(1, 2)), dim=1)
        x = x + self.project(F.silu(self.between(self.depth(y)))).transpose(1, 2)
        return self.last(x + 0.5 * self.second(x))


def conformer():
    """Speech: twelve blocks over four seconds of features."""
    model = nn.Sequential(nn.Linear(80, 256), *(ConformerBlock() for _ in range(12)))
    return model.cuda().to(_BF16).eval(), (rand(4, 100, 80, dtype=_BF16),)


def translation():
    """An encoder and a decoder, trained on pairs of sentences."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(8000, 256)
            self.body = nn.Transformer(256, 4, 3, 3, 1024, dropout=0.0, batch_first=True)
            self.head = nn.Linear(256, 8000)
            mask = nn.Transformer.generate_square_subsequent_mask(40)
            self.register_buffer("mask", mask)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            # Without being told, torch would read the mask to see whether it is causal.
            seen = self.body(
                self.words(source), self.words(target), tgt_mask=self.mask, tgt_is_causal=True
            )
            return self.head(seen)

    def loss_of(model, source, target, wanted):
        return F.cross_entropy(model(source, target).flatten(0, 1), wanted.flatten())

    batch = (whole_numbers(8000, 16, 48), whole_numbers(8000, 16, 40), whole_numbers(8000, 16, 40))
    return trained(Pairs(), loss_of, *batch)


class StateSpace(nn.Module):
    """A diagonal state space, applied as a convolution by Fourier transforms."""

    def __init__(self, width: int = 256, states: int = 32) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.rand(width, states))
        self.turn = nn.Parameter(torch.rand(width, states))
        self.weight = nn.Parameter(torch.randn(width, states))
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 2 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        at = torch.arange(length, device=x.device)
        rate = torch.complex(-F.softplus(self.decay), self.turn)
        kernel = (self.weight.unsqueeze(-1) * torch.exp(rate.unsqueeze(-1) * at)).sum(1).real
        y = self.norm(x).transpose(1, 2)
        seen = torch.fft.rfft(y, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(seen, n=2 * length)[..., :length]
        return x + F.glu(self.mix(F.gelu(y).transpose(1, 2)), dim=-1)


def state_space():
    """Six layers of a diagonal state space over a thousand steps."""
    model = nn.Sequential(nn.Linear(16, 256), *(StateSpace() for _ in range(6)), nn.Linear(256, 10))
    return model.cuda().eval(), (rand(8, 1024, 16),)


class Experts(nn.Module):
    """Every expert computes every token, and the gate weighs them: no shape depends on values."""

    def __init__(self, width: int = 256, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.02)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        best, which = self.gate(y).softmax(-1).topk(2)
        weights = torch.zeros_like(self.gate(y)).scatter(-1, which, best)
        hidden = F.gelu(torch.einsum("btd,edh->beth", y, self.up))
        made = torch.einsum("beth,ehd->betd", hidden, self.down)
        return x + torch.einsum("betd,bte->btd", made, weights)


def experts():
    """Four layers of eight experts, trained."""
    model = nn.Sequential(*(Experts() for _ in range(4)))

    def loss_of(model, x, y):
        return F.mse_loss(model(x), y)

    return trained(model, loss_of, rand(8, 64, 256), rand(8, 64, 256))


class CrossStep(nn.Module):
    """One token of an encoder-decoder, whose keys and values are kept."""

    def __init__(self, width: int = 512, heads: int = 8, layers: int = 6) -> None:
        super().__init__()
        self.heads, self.layers = heads, layers
        self.words, self.norms = nn.Embedding(16_000, width), nn.ModuleList()
        self.qkv, self.out, self.query, self.back, self.up, self.down = (
            nn.ModuleList() for _ in range(6)
        )
        for _ in range(layers):
            self.norms.append(nn.ModuleList(nn.RMSNorm(width) for _ in range(3)))
            self.qkv.append(nn.Linear(width, 3 * width, bias=False))
            self.up.append(nn.Linear(width, 4 * width, bias=False))
            self.down.append(nn.Linear(4 * width, width, bias=False))
            for projections in (self.out, self.query, self.back):
                projections.append(nn.Linear(width, width, bias=False))
        self.head = nn.Linear(width, 16_000, bias=False)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, token, at, kept, seen):
        x = self.words(token)
        for layer in range(self.layers):
            first, second, third = self.norms[layer]
            q, k, v = map(self._heads, self.qkv[layer](first(x)).chunk(3, dim=-1))
            keys = kept[layer, 0].index_copy(2, at, k)
            values = kept[layer, 1].index_copy(2, at, v)
            y = F.scaled_dot_product_attention(q, keys, values)
            x = x + self.out[layer](y.transpose(1, 2).flatten(2))
            q = self._heads(self.query[layer](second(x)))
            y = F.scaled_dot_product_attention(q, seen[layer, 0], seen[layer, 1])
            x = x + self.back[layer](y.transpose(1, 2).flatten(2))
            x = x + self.down[layer](F.relu(self.up[layer](third(x))))
        return self.head(x)


def cross_decode():
    """One decoding step of an encoder-decoder of T5's size small."""
    model = CrossStep().cuda().to(_BF16).eval()
    caches = (rand(6, 2, 4, 8, 64, 64, dtype=_BF16), rand(6, 2, 4, 8, 128, 64, dtype=_BF16))
    return model, (whole_numbers(16_000, 4, 1), torch.tensor([5], device="cuda"), *caches)
