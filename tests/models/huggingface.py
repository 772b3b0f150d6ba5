"""Small Hugging Face models with random weights: a name in, a module with its arguments out.

Configurations are the library's own, only smaller; the models' code is unchanged and nothing is
downloaded. Models come in evaluation mode. Every output has a `loss`, except DETR's without scipy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import torch
import transformers as hf
from torch import nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

BATCH, LENGTH, VOCABULARY, HIDDEN, IMAGE = 2, 12, 64, 32, 32
LAYERS = 1  # a second one runs the same code again
LAYER = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "intermediate_size": 64}
TEXT = {**LAYER, "vocab_size": VOCABULARY, "max_position_embeddings": 32}


def tokens(length: int = LENGTH) -> torch.Tensor:
    """Token ids that avoid the small ids which configurations use for padding and ends."""
    return torch.randint(4, VOCABULARY, (BATCH, length))


def pixels(size: int = IMAGE) -> torch.Tensor:
    return torch.rand(BATCH, 3, size, size)


def prompt() -> dict[str, Any]:
    """What a tokenizer gives, with the labels of a language model."""
    ids = tokens()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def image_and_class() -> dict[str, Any]:
    return {"pixel_values": pixels(), "labels": torch.randint(0, 4, (BATCH,))}


def bert() -> Built:
    config = hf.BertConfig(**TEXT, num_attention_heads=2)
    return hf.BertForMaskedLM(config).eval(), (), prompt()


def gpt2() -> Built:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    return hf.GPT2LMHeadModel(config).eval(), (), prompt()


def llama() -> Built:
    config = hf.LlamaConfig(**TEXT, num_attention_heads=4, num_key_value_heads=2)
    return hf.LlamaForCausalLM(config).eval(), (), prompt()


def t5() -> Built:
    config = hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=HIDDEN,
        d_kv=8,
        d_ff=64,
        num_layers=LAYERS,
        num_heads=4,
        decoder_start_token_id=0,
    )
    arguments = {**prompt(), "labels": tokens(6)}
    return hf.T5ForConditionalGeneration(config).eval(), (), arguments


def mixtral() -> Built:
    config = hf.MixtralConfig(
        **TEXT,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return hf.MixtralForCausalLM(config).eval(), (), prompt()


def vit() -> Built:
    config = hf.ViTConfig(
        **LAYER, num_attention_heads=2, image_size=IMAGE, patch_size=8, num_labels=4
    )
    return hf.ViTForImageClassification(config).eval(), (), image_and_class()


def swin() -> Built:
    config = hf.SwinConfig(
        image_size=IMAGE,
        patch_size=2,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        window_size=4,
        num_labels=4,
    )
    return hf.SwinForImageClassification(config).eval(), (), image_and_class()


def convnext() -> Built:
    config = hf.ConvNextConfig(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_labels=4)
    return hf.ConvNextForImageClassification(config).eval(), (), image_and_class()


def resnet_config() -> hf.ResNetConfig:
    return hf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        num_labels=4,
        out_features=["stage4"],
    )


def resnet() -> Built:
    return hf.ResNetForImageClassification(resnet_config()).eval(), (), image_and_class()


def whisper() -> Built:
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=HIDDEN,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=20,
        max_target_positions=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
    )
    arguments = {"input_features": torch.randn(BATCH, 16, 40), "labels": tokens(6)}
    return hf.WhisperForConditionalGeneration(config).eval(), (), arguments


def detr() -> Built:
    config = hf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=resnet_config(),
        d_model=HIDDEN,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_queries=6,
        num_labels=4,
    )
    arguments: dict[str, Any] = {"pixel_values": pixels(64)}
    # The loss matches boxes with scipy's assignment solver and refuses to run without it.
    if find_spec("scipy") is not None:
        arguments["labels"] = [boxes_of_an_image() for _ in range(BATCH)]
    return hf.DetrForObjectDetection(config).eval(), (), arguments


def boxes_of_an_image() -> dict[str, torch.Tensor]:
    return {"class_labels": torch.randint(0, 4, (3,)), "boxes": torch.rand(3, 4) * 0.4 + 0.3}


def mamba() -> Built:
    config = hf.MambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        state_size=8,
        num_hidden_layers=LAYERS,
        time_step_rank=4,
    )
    ids = tokens()
    return hf.MambaForCausalLM(config).eval(), (), {"input_ids": ids, "labels": ids.clone()}


BUILDERS: Mapping[str, Callable[[], Built]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "mixtral": mixtral,
    "vit": vit,
    "swin": swin,
    "convnext": convnext,
    "resnet": resnet,
    "whisper": whisper,
    "detr": detr,
    "mamba": mamba,
}
