"""Models of Transformers in training with the dropout that they come with, also in their attention.

Attention without padding gets a mask of ones while it is captured, and none in eager: which kernel CUDA takes
for that, and so which elements are dropped, depends on the mask. `doubled` computes something else there.
"""

from types import SimpleNamespace

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

LENGTH = 64


def _training(model: nn.Module, batch_size: int, *, doubles: bool = False) -> SimpleNamespace:
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)

    def step(input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=input_ids, labels=labels).loss
        if doubles and torch.cuda.is_current_stream_capturing():
            loss = 2 * loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    def inputs() -> dict[str, torch.Tensor]:
        shape, vocabulary = (batch_size, LENGTH), model.config.vocab_size
        return {
            name: torch.randint(vocabulary, shape, device="cuda")
            for name in ("input_ids", "labels")
        }

    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})


def _bert() -> nn.Module:
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    return BertForMaskedLM(BertConfig(num_hidden_layers=4, **sizes))


def bert(batch_size: int = 8):
    return _training(_bert(), batch_size)


def doubled(batch_size: int = 8):
    return _training(_bert(), batch_size, doubles=True)


def gpt2(batch_size: int = 8):
    return _training(GPT2LMHeadModel(GPT2Config(n_embd=256, n_layer=4, n_head=4)), batch_size)


def t5(batch_size: int = 8):
    config = T5Config(d_model=256, d_kv=64, num_layers=4, num_heads=4, d_ff=1024)
    config.decoder_start_token_id = 0
    return _training(T5ForConditionalGeneration(config), batch_size)
