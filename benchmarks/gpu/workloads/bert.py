"""BERT base under masked-token training, as sample_models/bert_mlm.py has it in small.

`gathered` takes the masked positions out by a boolean index; `static` computes every position's loss
and weights it by the mask: the same mean, with fixed shapes.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForMaskedLM

LENGTH = 128

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _gathered_loss(
    logits: torch.Tensor, labels: torch.Tensor, masked: torch.Tensor
) -> torch.Tensor:
    return F.cross_entropy(logits[masked], labels[masked])


def _static_loss(logits: torch.Tensor, labels: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    return (losses * masked).sum() / masked.sum()


def _training(loss_of: Loss, batch_size: int) -> SimpleNamespace:
    config = BertConfig(attn_implementation="sdpa")
    model = BertForMaskedLM(config).cuda().train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=torch.tensor(1e-4, device="cuda"), fused=True, capturable=True
    )

    def step(tokens: torch.Tensor, labels: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(tokens).logits, labels, masked)
        loss.backward()
        optimizer.step()
        return loss.detach()

    shape = (batch_size, LENGTH)
    inputs = (
        torch.randint(config.vocab_size, shape, device="cuda"),
        torch.randint(config.vocab_size, shape, device="cuda"),
        torch.rand(shape, device="cuda") < 0.15,
    )
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model, "optimizer": optimizer})


def gathered(batch_size: int = 8):
    return _training(_gathered_loss, batch_size)


def static(batch_size: int = 8):
    return _training(_static_loss, batch_size)


def inference(batch_size: int = 1):
    model = BertForMaskedLM(BertConfig(attn_implementation="sdpa")).cuda().eval()
    return model, (torch.randint(model.config.vocab_size, (batch_size, LENGTH), device="cuda"),)
