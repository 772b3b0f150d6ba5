"""diffusers' UNets, transformers and autoencoders, made small."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import diffusers
import torch
from zoo import Built, Case, Inputs, built

BATCH, CHANNELS, SIZE, WORDS, WIDTH = 2, 4, 16, 6, 32
Draw = Callable[[], torch.Tensor]


def image(channels: int = CHANNELS, *sizes: int) -> Draw:
    return lambda: torch.randn(BATCH, channels, *(sizes or (SIZE, SIZE)))


def words(width: int = WIDTH, count: int = WORDS) -> Draw:
    return lambda: torch.randn(BATCH, count, width)


def vector(width: int) -> Draw:
    return lambda: torch.randn(BATCH, width)


def steps() -> torch.Tensor:
    return torch.randint(0, 1000, (BATCH,))


def fractions() -> torch.Tensor:
    return torch.rand(BATCH)


def ids(count: int, width: int = 3) -> Draw:
    """Positions of tokens: the same for each draw of the values."""
    return lambda: torch.arange(count * width).reshape(count, width) % 7


@dataclass(frozen=True)
class Recipe:
    settings: dict[str, Any]
    inputs: dict[str, Draw]


BLOCKS = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
HEADS = {"num_attention_heads": 2, "attention_head_dim": 16}
UNET = {"sample": image(), "timestep": steps}
UNET_WORDS = {**UNET, "encoder_hidden_states": words()}
TOKENS = {"hidden_states": image(), "timestep": steps, "encoder_hidden_states": words()}
FILM = image(CHANNELS, 4, SIZE, SIZE)
CROSS = {
    **BLOCKS,
    "sample_size": SIZE,
    "cross_attention_dim": WIDTH,
    "attention_head_dim": 8,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
CODER = {
    **BLOCKS,
    "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
RECIPES: dict[str, Recipe] = {
    "UNet1DModel": Recipe(
        {
            "block_out_channels": (32, 32, 64),
            "sample_size": 64,
            "in_channels": 2,
            "extra_in_channels": 64,
        },
        {"sample": lambda: torch.randn(BATCH, 2, 64), "timestep": steps},
    ),
    "UNet2DModel": Recipe(
        {
            **BLOCKS,
            "sample_size": SIZE,
            "in_channels": 3,
            "attention_head_dim": 8,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        {"sample": image(3), "timestep": steps},
    ),
    "UNet2DConditionModel": Recipe(CROSS, UNET_WORDS),
    "UNet3DConditionModel": Recipe(
        {
            **CROSS,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        {**UNET_WORDS, "sample": FILM},
    ),
    "UVit2DModel": Recipe(
        {
            "hidden_size": WIDTH,
            "cond_embed_dim": WIDTH,
            "encoder_hidden_size": WIDTH,
            "block_out_channels": WIDTH,
            "micro_cond_encode_dim": 8,
            "micro_cond_embed_dim": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_res_blocks": 1,
            "block_num_heads": 2,
            "in_channels": WIDTH,
            "intermediate_size": 64,
            "vocab_size": 64,
            "codebook_size": 60,
            "sample_size": SIZE,
        },
        {
            "input_ids": lambda: torch.randint(0, 60, (BATCH, SIZE, SIZE)),
            "encoder_hidden_states": words(),
            "pooled_text_emb": vector(WIDTH),
            "micro_conds": vector(5),
        },
    ),
    "AutoencoderKL": Recipe(CODER, {"sample": image(3)}),
    "AsymmetricAutoencoderKL": Recipe(
        {
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "down_block_out_channels": (32, 64),
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "up_block_out_channels": (32, 64),
            "layers_per_down_block": 1,
            "norm_num_groups": 8,
        },
        {"sample": image(3)},
    ),
    "AutoencoderTiny": Recipe(
        {
            "encoder_block_out_channels": (32, 32),
            "decoder_block_out_channels": (32, 32),
            "num_encoder_blocks": (1, 2),
            "num_decoder_blocks": (2, 1),
        },
        {"sample": image(3)},
    ),
    "AutoencoderKLTemporalDecoder": Recipe(
        {
            "block_out_channels": (32, 64),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "layers_per_block": 1,
        },
        {"sample": lambda: torch.randn(BATCH, 3, 32, 32)},
    ),
    "VQModel": Recipe(
        {
            **BLOCKS,
            "latent_channels": 3,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        },
        {"sample": image(3)},
    ),
    "ControlNetModel": Recipe(
        {
            **BLOCKS,
            "cross_attention_dim": WIDTH,
            "attention_head_dim": 8,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "conditioning_embedding_out_channels": (16, 32),
        },
        {
            **UNET_WORDS,
            "controlnet_cond": image(3, 2 * SIZE, 2 * SIZE),
        },
    ),
    "Transformer2DModel": Recipe(
        {**HEADS, "in_channels": WIDTH, "norm_num_groups": 8, "cross_attention_dim": WIDTH},
        {"hidden_states": image(WIDTH), "encoder_hidden_states": words()},
    ),
    "TransformerTemporalModel": Recipe(
        {**HEADS, "in_channels": WIDTH, "norm_num_groups": 8},
        {"hidden_states": image(WIDTH)},
    ),
    "DiTTransformer2DModel": Recipe(
        {**HEADS, "num_layers": 2, "sample_size": SIZE, "norm_num_groups": 8},
        {
            "hidden_states": image(),
            "timestep": steps,
            "class_labels": lambda: torch.randint(0, 1000, (BATCH,)),
        },
    ),
    "PixArtTransformer2DModel": Recipe(
        {
            **HEADS,
            "num_layers": 2,
            "sample_size": SIZE,
            "cross_attention_dim": WIDTH,
            "caption_channels": WIDTH,
            "out_channels": 8,
            "use_additional_conditions": False,
        },
        TOKENS,
    ),
    "PriorTransformer": Recipe(
        {**HEADS, "num_layers": 2, "embedding_dim": WIDTH, "num_embeddings": WORDS},
        {
            "hidden_states": vector(WIDTH),
            "timestep": steps,
            "proj_embedding": vector(WIDTH),
            "encoder_hidden_states": words(),
        },
    ),
    "SD3Transformer2DModel": Recipe(
        {
            **HEADS,
            "sample_size": SIZE,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "num_layers": 2,
            "joint_attention_dim": WIDTH,
            "caption_projection_dim": WIDTH,
            "pooled_projection_dim": 64,
            "pos_embed_max_size": 32,
        },
        {**TOKENS, "pooled_projections": vector(64)},
    ),
    "AuraFlowTransformer2DModel": Recipe(
        {
            **HEADS,
            "sample_size": SIZE,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "joint_attention_dim": WIDTH,
            "caption_projection_dim": WIDTH,
            "pos_embed_max_size": 256,
        },
        {**TOKENS, "timestep": fractions},
    ),
    "FluxTransformer2DModel": Recipe(
        {
            **HEADS,
            "in_channels": CHANNELS,
            "num_layers": 1,
            "num_single_layers": 1,
            "joint_attention_dim": WIDTH,
            "pooled_projection_dim": WIDTH,
            "axes_dims_rope": (4, 4, 8),
        },
        {
            "hidden_states": words(CHANNELS, 16),
            "encoder_hidden_states": words(),
            "pooled_projections": vector(WIDTH),
            "timestep": fractions,
            "img_ids": ids(16),
            "txt_ids": ids(WORDS),
        },
    ),
    "HunyuanDiT2DModel": Recipe(
        {
            **HEADS,
            "sample_size": SIZE,
            "patch_size": 2,
            "in_channels": CHANNELS,
            "hidden_size": WIDTH,
            "num_layers": 2,
            "cross_attention_dim": WIDTH,
            "cross_attention_dim_t5": WIDTH,
            "pooled_projection_dim": 16,
            "text_len": WORDS,
            "text_len_t5": WORDS,
            "activation_fn": "gelu-approximate",
            "use_style_cond_and_image_meta_size": False,
        },
        {
            "hidden_states": image(),
            "timestep": steps,
            "encoder_hidden_states": words(),
            "text_embedding_mask": lambda: torch.ones(BATCH, WORDS),
            "encoder_hidden_states_t5": words(),
            "text_embedding_mask_t5": lambda: torch.ones(BATCH, WORDS),
            "image_rotary_emb": lambda: torch.rand(2, 64, 16).unbind(),
        },
    ),
    "LatteTransformer3DModel": Recipe(
        {
            **HEADS,
            "num_layers": 1,
            "sample_size": SIZE,
            "patch_size": 2,
            "caption_channels": WIDTH,
            "cross_attention_dim": WIDTH,
            "in_channels": CHANNELS,
            "video_length": 4,
        },
        {**TOKENS, "hidden_states": FILM},
    ),
    "CogVideoXTransformer3DModel": Recipe(
        {
            **HEADS,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "time_embed_dim": 8,
            "text_embed_dim": WIDTH,
            "num_layers": 1,
            "sample_width": SIZE,
            "sample_height": SIZE,
            "sample_frames": 4,
            "temporal_compression_ratio": 1,
            "max_text_seq_length": WORDS,
        },
        {**TOKENS, "hidden_states": lambda: torch.randn(BATCH, 4, CHANNELS, SIZE, SIZE)},
    ),
    "WanTransformer3DModel": Recipe(
        {
            **HEADS,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "text_dim": WIDTH,
            "freq_dim": 64,
            "ffn_dim": 64,
            "num_layers": 2,
            "rope_max_seq_len": 64,
        },
        {**TOKENS, "hidden_states": FILM},
    ),
    "SanaTransformer2DModel": Recipe(
        {
            **HEADS,
            "sample_size": SIZE,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "num_layers": 2,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 16,
            "cross_attention_dim": WIDTH,
            "caption_channels": WIDTH,
        },
        TOKENS,
    ),
    "LTXVideoTransformer3DModel": Recipe(
        {
            **HEADS,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "cross_attention_dim": WIDTH,
            "num_layers": 1,
            "caption_channels": WIDTH,
        },
        {
            "hidden_states": words(CHANNELS, 32),
            "encoder_hidden_states": words(),
            "timestep": steps,
            "encoder_attention_mask": lambda: torch.ones(BATCH, WORDS, dtype=torch.bool),
        },
    ),
}
SIZES = {"LTXVideoTransformer3DModel": {"num_frames": 2, "height": 4, "width": 4}}
# Passed beside the tensors: what a pipeline passes.
EXTRAS: dict[str, dict[str, Any]] = {
    **SIZES,
    "PixArtTransformer2DModel": {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
}


def cases() -> Iterator[Case]:
    for name in RECIPES:
        kind = "unet" if "UNet" in name or "UVit" in name else "transformer"
        kind = "autoencoder" if name.startswith(("Auto", "Asym", "VQ")) else kind
        yield Case(name, "diffusers", kind, name, partial(build, name))


def build(name: str) -> Built:
    recipe = RECIPES[name]
    model = getattr(diffusers, name)(**recipe.settings)
    return built(Tensors(model), partial(draw, name))


def draw(name: str) -> Inputs:
    drawn = {key: make() for key, make in RECIPES[name].inputs.items()}
    return {**drawn, **EXTRAS.get(name, {})}


class Tensors(torch.nn.Module):
    """A model that gives its outputs as a tuple."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        if "return_dict" in inspect.signature(self.model.forward).parameters:
            inputs["return_dict"] = False
        return self.model(**inputs)
