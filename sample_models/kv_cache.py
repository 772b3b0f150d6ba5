"""One decoding step of an attention layer with a key-value cache.

The usual cache grows by `torch.cat`: each step reads a longer tensor at a new address, and a
replay would forever attend to the cache as it was when captured. `static` writes into buffers of
full length at a position kept on the device, and masks what lies beyond it.

Expect: verdict=partly-safe; rules=GD206; mode=inference
Expect[static]: verdict=safe; rules=none; mode=inference
"""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, HEADS, HEAD, LONGEST = 2, 4, 16, 64
WIDTH = HEADS * HEAD


class Decoder(nn.Module):
    """Attention over a cache that starts with eight tokens and grows by one in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.project_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.project_out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("keys", torch.randn(BATCH, HEADS, 8, HEAD))
        self.register_buffer("values", torch.randn(BATCH, HEADS, 8, HEAD))

    @torch.no_grad()
    def forward(self, token: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.view(BATCH, 1, HEADS, HEAD).transpose(1, 2)
            for part in self.project_in(token).chunk(3, dim=-1)
        )
        attended = self.attend(query, key, value)
        return self.project_out(attended.transpose(1, 2).reshape(BATCH, 1, WIDTH))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self.keys = torch.cat([self.keys, key], dim=2)
        self.values = torch.cat([self.values, value], dim=2)
        return F.scaled_dot_product_attention(query, self.keys, self.values)


class StaticDecoder(Decoder):
    """The same layer; the cache has its full length from the start."""

    def __init__(self) -> None:
        super().__init__()
        empty = torch.zeros(BATCH, HEADS, LONGEST - 8, HEAD)
        self.keys = torch.cat([self.keys, empty], dim=2)
        self.values = torch.cat([self.values, empty], dim=2)
        self.register_buffer("position", torch.tensor([8]))
        self.register_buffer("slots", torch.arange(LONGEST))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(2, self.position, key)
        self.values.index_copy_(2, self.position, value)
        seen = (self.slots <= self.position).view(1, 1, 1, LONGEST)
        self.position.add_(1)
        return F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=seen)


def graphdoctor_target():
    return Decoder().eval(), (torch.randn(BATCH, 1, WIDTH),)


def static():
    return StaticDecoder().eval(), (torch.randn(BATCH, 1, WIDTH),)
