"""Models of pictures and points that nothing was fitted to: mixers, transformers, U-Nets, detection, autoencoders.

Each function is a family of its own: plain PyTorch at usual sizes, with random weights.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from sequences import rand, trained, whole_numbers
from torch import nn

_BF16 = torch.bfloat16


class MixerBlock(nn.Module):
    def __init__(self, patches: int = 196, width: int = 512) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over = nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches))
        self.along = nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.over(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.second(x))


class Patches(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cut(x).flatten(2).transpose(1, 2)


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def mixer():
    """An MLP-Mixer of size small."""
    blocks = [MixerBlock() for _ in range(8)]
    model = nn.Sequential(Patches(512), *blocks, nn.LayerNorm(512), Mean(), nn.Linear(512, 1000))
    return model.cuda().to(_BF16).eval(), (rand(8, 3, 224, 224, dtype=_BF16),)


def vit():
    """A vision transformer of size tiny, trained in bfloat16."""

    class Pictures(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.at = Patches(192), nn.Parameter(torch.zeros(1, 196, 192))
            layer = nn.TransformerEncoderLayer(
                192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.body = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
            self.head = nn.Linear(192, 1000)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.patches(x) + self.at).mean(1))

    def loss_of(model, pictures, labels):
        with torch.autocast("cuda", _BF16, cache_enabled=False):
            return F.cross_entropy(model(pictures), labels)

    return trained(Pictures(), loss_of, rand(32, 3, 224, 224), whole_numbers(1000, 32))


def _two(into: int, out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in (into, out):
        layers += [nn.Conv2d(size, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.down, self.up, self.widen = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        before = 3
        for width in widths:
            self.down.append(_two(before, width))
            before = width
        for width in reversed(widths[:-1]):
            self.widen.append(nn.ConvTranspose2d(2 * width, width, 2, 2))
            self.up.append(_two(2 * width, width))
        self.head = nn.Conv2d(widths[0], 21, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for place, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if place else x)
            kept.append(x)
        kept.pop()
        for widen, layer in zip(self.widen, self.up, strict=True):
            x = layer(torch.cat([kept.pop(), widen(x)], 1))
        return self.head(x)


def segmentation():
    """A U-Net for 21 classes, trained."""

    def loss_of(model, pictures, labels):
        return F.cross_entropy(model(pictures), labels)

    return trained(UNet(), loss_of, rand(8, 3, 128, 128), whole_numbers(21, 8, 128, 128))


class Depthwise(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        wide = 4 * into
        self.adds = stride == 1 and into == out
        self.body = nn.Sequential(
            nn.Conv2d(into, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
            nn.Conv2d(wide, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def _mobile() -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1)]
    before = 16
    for width, count, stride in ((24, 2, 2), (40, 3, 2), (80, 3, 2), (112, 3, 1), (160, 3, 2)):
        for place in range(count):
            layers.append(Depthwise(before, width, stride if place == 0 else 1))
            before = width
    return layers


def mobile():
    """Inverted bottlenecks with depthwise convolutions, in float32."""
    model = nn.Sequential(*_mobile(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 1000))
    return model.cuda().eval(), (rand(16, 3, 224, 224),)


class Detector(nn.Module):
    """One look: classes and boxes of a grid at three sizes, decoded, without suppression."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        body = _mobile()
        self.parts = nn.ModuleList(
            nn.Sequential(*part) for part in (body[:6], body[6:12], body[12:])
        )
        self.side = nn.ModuleList(nn.Conv2d(width, 96, 1) for width in (40, 112, 160))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(96, 96, 3, padding=1), nn.SiLU(), nn.Conv2d(96, classes + 4, 1))
            for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = []
        for part, side, head in zip(self.parts, self.side, self.heads, strict=True):
            x = part(x)
            found.append(head(side(x)).flatten(2))
        joined = torch.cat(found, 2).transpose(1, 2)
        return joined[..., 4:].sigmoid(), F.softplus(joined[..., :4])


def detection():
    """A single-shot detector on four pictures."""
    return Detector().cuda().to(_BF16).eval(), (rand(4, 3, 320, 320, dtype=_BF16),)


class Autoencoder(nn.Module):
    def __init__(self, width: int = 32, code: int = 128) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        pairs = list(pairwise(sizes))
        self.encode = nn.Sequential(
            *(layer for a, b in pairs for layer in (nn.Conv2d(a, b, 4, 2, 1), nn.ReLU())),
            nn.Flatten(),
            nn.Linear(sizes[-1] * 64, 2 * code),
        )
        self.decode = nn.Sequential(
            nn.Linear(code, sizes[-1] * 64),
            nn.Unflatten(1, (sizes[-1], 8, 8)),
            *(
                layer
                for a, b in reversed(pairs)
                for layer in (nn.ReLU(), nn.ConvTranspose2d(b, a, 4, 2, 1))
            ),
        )

    def forward(self, x, noise):
        mean, spread = self.encode(x).chunk(2, dim=1)
        return self.decode(mean + noise * (0.5 * spread).exp()), mean, spread


def autoencoder():
    """A variational autoencoder of 64 by 64 pixels, trained."""

    def loss_of(model, pictures, noise):
        made, mean, spread = model(pictures, noise)
        apart = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1).mean()
        return F.mse_loss(made, pictures) + 1e-3 * apart

    return trained(Autoencoder(), loss_of, rand(64, 3, 64, 64), rand(64, 128))


class DiffusionBlock(nn.Module):
    def __init__(self, width: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.first = nn.LayerNorm(width, elementwise_affine=False)
        self.second = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )
        self.when = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        a, b, c, d, e, f = self.when(when).unsqueeze(1).chunk(6, dim=-1)
        q, k, v = (
            self.qkv(self.first(x) * (1 + a) + b)
            .unflatten(-1, (3, self.heads, -1))
            .transpose(1, 3)
            .unbind(2)
        )
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + c * self.out(seen)
        return x + f * self.wide(self.second(x) * (1 + d) + e)


class DiffusionTransformer(nn.Module):
    def __init__(self, width: int = 384, layers: int = 12) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(16, width), nn.Linear(width, 16)
        self.clock = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(DiffusionBlock(width) for _ in range(layers))

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-9.2 * torch.arange(128, device=x.device) / 128)
        turns = when.float().unsqueeze(1) * rates
        clock = self.clock(torch.cat([turns.cos(), turns.sin()], 1).to(x.dtype))
        x = self.into(x)
        for block in self.blocks:
            x = block(x, clock)
        return self.back(x)


def diffusion_transformer():
    """One denoising step of a DiT of size small."""
    model = DiffusionTransformer().cuda().to(_BF16).eval()
    return model, (rand(2, 256, 16, dtype=_BF16), whole_numbers(1000, 2))


def sharper():
    """Super-resolution by a factor of two: sixteen residual blocks."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.body(x)

    model = nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1),
        *(Residual() for _ in range(16)),
        nn.Conv2d(48, 12, 3, padding=1),
        nn.PixelShuffle(2),
    )
    return model.cuda().to(_BF16).eval(), (rand(1, 3, 180, 320, dtype=_BF16),)


class Points(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 64, 128, 512)
        self.each = nn.Sequential(
            *(
                layer
                for a, b in pairwise(widths)
                for layer in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())
            )
        )
        self.all = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.all(self.each(x).amax(2))


def points():
    """Clouds of points in forty classes, trained."""

    def loss_of(model, clouds, labels):
        return F.cross_entropy(model(clouds), labels)

    return trained(Points(), loss_of, rand(32, 3, 1024), whole_numbers(40, 32), fused=False)
