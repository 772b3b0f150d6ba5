"""Text from a language model: `generate` with the cache that grows, or with the one of fixed length."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--cache", choices=("dynamic", "static"), default="dynamic")
args = parser.parse_args()

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
)  # fmt: skip
model = LlamaForCausalLM(config).to("cuda" if torch.cuda.is_available() else "cpu").eval()
prompt = torch.randint(0, 64, (2, 8), device=model.device)
with torch.no_grad():
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=16,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        cache_implementation=args.cache,
    )
print(tokens.tolist())
