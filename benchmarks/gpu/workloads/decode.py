"""One decoding step of two language models in bfloat16, with key-value caches of fixed length.

`gpt2` has GPT-2's layers (layer norm, learned positions, GELU; 12 layers, width 768), `llama` those
of a one-billion-parameter Llama (RMS norm, rotary positions, grouped keys, gated perceptron).
"""

import torch
import torch.nn.functional as F
from torch import nn

LONGEST, PROMPT = 1024, 128


class StaticCache(nn.Module):
    """Keys and values of every position; what lies beyond the current one is masked."""

    def __init__(self, batch: int, heads: int, width: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.randn(batch, heads, LONGEST, width))
        self.register_buffer("values", torch.randn(batch, heads, LONGEST, width))

    def forward(self, query, key, value, position, seen):
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        grouped = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
        return F.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=seen, **grouped
        )


class Attention(nn.Module):
    """`keys` heads of keys and values serve `heads` heads of queries."""

    def __init__(self, batch: int, width: int, heads: int, keys: int, *, rotary: bool) -> None:
        super().__init__()
        self.heads, self.keys, self.size, self.rotary = heads, keys, width // heads, rotary
        self.project_in = nn.Linear(width, (heads + 2 * keys) * self.size, bias=not rotary)
        self.project_out = nn.Linear(width, width, bias=not rotary)
        self.cache = StaticCache(batch, keys, self.size)

    def forward(self, x, position, seen, angles):
        batch = x.shape[0]
        projected = self.project_in(x).view(batch, 1, -1, self.size).transpose(1, 2)
        query, key, value = projected.split((self.heads, self.keys, self.keys), dim=1)
        if self.rotary:
            query, key = rotated(query, angles), rotated(key, angles)
        attended = self.cache(query, key, value, position, seen)
        return self.project_out(attended.transpose(1, 2).reshape(batch, 1, -1))


def rotated(x, angles):
    one, other = x.chunk(2, dim=-1)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([one * cosine - other * sine, other * cosine + one * sine], dim=-1)


class Gpt2Layer(nn.Module):
    def __init__(self, batch: int, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(batch, width, heads, heads, rotary=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, position, seen, angles):
        x = x + self.attention(self.norm1(x), position, seen, angles)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LlamaLayer(nn.Module):
    def __init__(self, batch: int, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(batch, width, heads, heads // 4, rotary=True)
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, position, seen, angles):
        x = x + self.attention(self.norm1(x), position, seen, angles)
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    """A token in, the next one out; the position lies on the device and moves on by itself."""

    def __init__(self, layers: list[nn.Module], width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        self.register_buffer("slots", torch.arange(LONGEST))
        self.register_buffer("position", torch.tensor([PROMPT]))
        self.register_buffer("speeds", 10_000 ** (-torch.arange(0, size, 2).float() / size))

    def forward(self, token):
        seen = (self.slots <= self.position).view(1, 1, 1, LONGEST)
        angles = self.position * self.speeds
        x = self.words(token)
        for layer in self.layers:
            x = layer(x, self.position, seen, angles)
        self.position.add_(1)
        return self.head(x).argmax(dim=-1)


def _placed(model: nn.Module) -> nn.Module:
    return model.cuda().to(torch.bfloat16).eval()


def gpt2(batch_size: int = 1):
    layers: list[nn.Module] = [Gpt2Layer(batch_size, 768, 12) for _ in range(12)]
    model = _placed(Decoder(layers, 768, 12, vocabulary=50_257))
    return model, (torch.randint(50_257, (batch_size, 1), device="cuda"),)


def llama(batch_size: int = 1):
    layers: list[nn.Module] = [LlamaLayer(batch_size, 2048, 32) for _ in range(16)]
    model = _placed(Decoder(layers, 2048, 32, vocabulary=128_256))
    return model, (torch.randint(128_256, (batch_size, 1), device="cuda"),)
