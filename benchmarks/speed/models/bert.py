"""BERT as the benchmarks analyse it: base and large, sequence 128, batch 1, random weights."""

import torch
from transformers import BertConfig, BertForMaskedLM

BATCH, SEQUENCE = 1, 128


def _model_and_tokens(**sizes):
    torch.manual_seed(0)
    config = BertConfig(attn_implementation="sdpa", **sizes)
    return BertForMaskedLM(config), torch.randint(0, config.vocab_size, (BATCH, SEQUENCE))


def inference():
    model, tokens = _model_and_tokens()
    return model.cuda().eval(), (tokens.cuda(),)


def large():
    """24 layers, hidden 1024: 335 million weights."""
    sizes = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}
    model, tokens = _model_and_tokens(**sizes, intermediate_size=4096)
    return model.cuda().eval(), (tokens.cuda(),)


def training():
    model, tokens = _model_and_tokens()
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=torch.tensor(1e-4, device="cuda"), capturable=True
    )

    def step(tokens, labels):
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (tokens.cuda(), tokens.clone().cuda())
