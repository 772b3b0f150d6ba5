"""Llama of 7 and 70 billion parameters on the meta device, bfloat16, one sequence of 512 tokens."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, TOKENS = 32_000, 512


def seven_billion() -> tuple[torch.nn.Module, dict[str, Any]]:
    return _llama(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32)


def seventy_billion() -> tuple[torch.nn.Module, dict[str, Any]]:
    return _llama(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    )


def _llama(**sizes: int) -> tuple[torch.nn.Module, dict[str, Any]]:
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))  # type: ignore[arg-type]
    ids = torch.randint(0, VOCABULARY, (1, TOKENS))
    return model.to(torch.bfloat16).eval(), {"input_ids": ids}
