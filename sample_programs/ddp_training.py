"""GPT-2 of Hugging Face under DistributedDataParallel, as torchrun starts it: a sampler, AdamW, a mean loss at the end.

torchrun --nproc-per-node 2 ddp_training.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from transformers import GPT2Config, GPT2LMHeadModel

dist.init_process_group("nccl")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.manual_seed(0)

config = GPT2Config(n_embd=64, n_layer=2, n_head=2, n_positions=64, vocab_size=256)
model = GPT2LMHeadModel(config).to(local_rank)
model = DistributedDataParallel(model, device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
data = TensorDataset(torch.randint(0, 256, (256, 32)))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=True)

for epoch in range(2):
    sampler.set_epoch(epoch)
    total = torch.zeros((), device="cuda")
    for (tokens,) in loader:
        tokens = tokens.to(local_rank, non_blocking=True)
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch}: loss {total.item() / len(loader) / dist.get_world_size():.4f}")
dist.destroy_process_group()
