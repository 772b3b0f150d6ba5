"""Steps with modules that are out of the ordinary."""

from __future__ import annotations

import copy
import itertools

import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import nn

from odd.step import CUDA, mlp, odd, trained, x8


@odd
def spectral_norm():
    model = nn.Sequential(torch.nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.ReLU())
    model = model.cuda()
    return trained(model), (x8(),), model


@odd
def weight_norm():
    model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)).cuda()
    return trained(model), (x8(),), model


@odd
def orthogonal():
    model = torch.nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)).cuda()
    return trained(model), (x8(),), model


@odd
def old_spectral_norm():
    model = torch.nn.utils.spectral_norm(nn.Linear(8, 8)).cuda()
    return trained(model), (x8(),), model


@odd
def pruned():
    model = nn.Linear(8, 8).cuda()
    torch.nn.utils.prune.l1_unstructured(model, "weight", 0.5)
    return trained(model), (x8(),), model


@odd
def lazy_linear():
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU()).cuda()
    return model, (x8(),)


@odd
def tied_weights():
    embed, out = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
    out.weight = embed.weight
    model = nn.Sequential(embed, out).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(ids):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (torch.randint(0, 16, (4, 8), device=CUDA),), model


@odd
def data_parallel_of_one():
    model = nn.DataParallel(mlp(), device_ids=[0])
    return trained(model), (x8(),), model


@odd
def dropout_whose_p_changes():
    drop, turns = nn.Dropout(0.1), itertools.count()

    def step(x):
        drop.p = 0.1 + 0.01 * (next(turns) % 5)
        return drop(x)

    return step, (x8(),)


@odd
def dropout_with_p_zero_in_eval():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).cuda().eval()
    return model, (x8(),)


@odd
def batch_norm_momentum_none():
    model = nn.BatchNorm1d(8, momentum=None).cuda()
    return trained(model), (x8(),), model


@odd
def sync_batch_norm_alone():
    model = nn.SyncBatchNorm(8).cuda()
    return trained(model), (x8(),), model


@odd
def multihead_with_need_weights():
    model = nn.MultiheadAttention(8, 2, batch_first=True).cuda().eval()
    return lambda x: model(x, x, x), (x8(2, 4, 8),)


@odd
def transformer_decoder_training():
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    model = nn.TransformerDecoder(layer, 2).cuda()

    def step(x, memory):
        model.zero_grad()
        loss = model(x, memory).square().mean()
        loss.backward()
        return loss.detach()

    return step, (x8(2, 4, 8), x8(2, 4, 8)), model


@odd
def deepcopy_in_step():
    model = mlp()
    return lambda x: copy.deepcopy(model)(x), (x8(),)


@odd
def state_dict_cloned_in_step():
    model = mlp()

    def step(x):
        kept = {k: v.clone() for k, v in model.state_dict().items()}
        return model(x) + kept["0.bias"].sum()

    return step, (x8(),)


@odd
def requires_grad_switched_in_step():
    model = mlp()

    def step(x):
        for p in model.parameters():
            p.requires_grad_(False)
        given = x.detach().requires_grad_()
        model(given).sum().backward()
        for p in model.parameters():
            p.requires_grad_(True)
        return given.grad

    return step, (x8(),)


@odd
def weights_loaded_in_step():
    model = mlp()
    kept = {k: v.clone() for k, v in model.state_dict().items()}

    def step(x):
        model.load_state_dict(kept)
        return model(x)

    return step, (x8(),)


@odd
def weights_assigned_in_step():
    model = mlp()
    kept = {k: v.clone() for k, v in model.state_dict().items()}

    def step(x):
        model.load_state_dict(kept, assign=True)
        return model(x)

    return step, (x8(),)


@odd
def parameter_data_replaced():
    weight = nn.Parameter(torch.ones(8, 8, device=CUDA))

    def step(x):
        weight.data = weight.data * 0.5
        return x @ weight

    return step, (x8(),)


@odd
def lstm_with_dropout_training():
    model = nn.LSTM(8, 8, 2, dropout=0.2).cuda()

    def step(x):
        model.zero_grad()
        loss = model(x)[0].square().mean()
        loss.backward()
        return loss.detach()

    return step, (x8(4, 2, 8),), model


@odd
def padded_sequences():
    lengths = torch.tensor([4, 2])

    def step(x):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0]

    return step, (x8(2, 4, 8),)


@odd
def lazy_batch_norm():
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d()).cuda().eval(), (x8(),)


@odd
def recurrent_before_a_read():
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(12)] + [nn.LSTM(8, 8)]).cuda()

    def step(x):
        for layer in layers[:-1]:
            x = layer(x)
        out, _ = layers[-1](x)
        if out.sum() > 1e9:
            out = out + 1
        for layer in layers[:-1]:
            out = layer(out)
        return out

    return step, (x8(3, 2, 8),), layers


@odd
def batch_norms_before_a_read():
    layers = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)) for _ in range(6))
    )
    layers.cuda().to(memory_format=torch.channels_last)

    def step(x):
        out = layers(x.to(memory_format=torch.channels_last))
        if out.sum() > 1e9:
            out = out + 1
        out.square().mean().backward()
        return out.detach()

    return step, (x8(4, 8, 32, 32),), layers
