"""One decoding step of a small transformer with key-value caches.

The usual cache grows by `torch.cat`: each step reads a longer tensor at a new address, and a
replay would forever attend to the cache as it was when captured. Between two caches the layers
are safe. `static` writes into buffers of full length at a position kept on the device, and masks
what lies beyond it.

Expect: verdict=partly-safe; rules=GD206; mode=inference
Expect[static]: verdict=safe; rules=none; mode=inference
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, HEADS, HEAD, PROMPT, LONGEST, LAYERS = 2, 4, 16, 8, 64, 2
WIDTH = HEADS * HEAD


class GrowingCache(nn.Module):
    """Attention over a cache that starts with the prompt and grows by one token in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.randn(BATCH, HEADS, PROMPT, HEAD))
        self.register_buffer("values", torch.randn(BATCH, HEADS, PROMPT, HEAD))

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self.keys = torch.cat([self.keys, key], dim=2)
        self.values = torch.cat([self.values, value], dim=2)
        return F.scaled_dot_product_attention(query, self.keys, self.values)


class StaticCache(nn.Module):
    """The same attention over a cache that has its full length from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.randn(BATCH, HEADS, LONGEST, HEAD))
        self.register_buffer("values", torch.randn(BATCH, HEADS, LONGEST, HEAD))
        self.register_buffer("position", torch.tensor([PROMPT]))
        self.register_buffer("slots", torch.arange(LONGEST))

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(2, self.position, key)
        self.values.index_copy_(2, self.position, value)
        seen = (self.slots <= self.position).view(1, 1, 1, LONGEST)
        self.position.add_(1)
        return F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=seen)


class Layer(nn.Module):
    def __init__(self, cache: nn.Module) -> None:
        super().__init__()
        self.cache = cache
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.project_out = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 2 * WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.view(BATCH, 1, HEADS, HEAD).transpose(1, 2)
            for part in self.project_in(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = self.cache(query, key, value).transpose(1, 2).reshape(BATCH, 1, WIDTH)
        x = x + self.project_out(attended)
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def decoder(cache: type[nn.Module]) -> nn.Module:
    return nn.Sequential(*(Layer(cache()) for _ in range(LAYERS))).eval()


def graphdoctor_target():
    return decoder(GrowingCache), (torch.randn(BATCH, 1, WIDTH),)


def static():
    return decoder(StaticCache), (torch.randn(BATCH, 1, WIDTH),)
