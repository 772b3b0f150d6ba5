"""One denoising step of a diffusion model: diffusers' UNet of 32 by 32 latents, and its training step."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from diffusers import UNet2DModel


def _unet() -> torch.nn.Module:
    return UNet2DModel(
        sample_size=32,
        in_channels=4,
        out_channels=4,
        layers_per_block=2,
        block_out_channels=(128, 256, 256),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    ).cuda()


def denoise(batch_size: int = 1):
    model = _unet().to(torch.bfloat16).eval()
    latents = torch.randn(batch_size, 4, 32, 32, device="cuda", dtype=torch.bfloat16)
    return model, (latents, torch.full((batch_size,), 500, device="cuda"))


def training(batch_size: int = 8):
    model = _unet().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)

    def step(noisy: torch.Tensor, times: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = F.mse_loss(model(noisy, times).sample, noise)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (
        torch.randn(batch_size, 4, 32, 32, device="cuda"),
        torch.randint(1000, (batch_size,), device="cuda"),
        torch.randn(batch_size, 4, 32, 32, device="cuda"),
    )
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})
