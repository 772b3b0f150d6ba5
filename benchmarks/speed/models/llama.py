"""A Llama of 1.1 billion weights in bfloat16, in TinyLlama's sizes: sequence 128, batch 1, random weights."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def inference():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        use_cache=False,
        dtype="bfloat16",
    )
    model = LlamaForCausalLM._from_config(config)
    tokens = torch.randint(0, config.vocab_size, (1, 128))
    return model.cuda().eval(), (tokens.cuda(),)
