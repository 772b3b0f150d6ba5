"""Small steps, each tried under capture on a real GPU -> which of them CUDA and torch refuse, and with what words.

Every step runs in a process of its own, warmed up three times on the capture stream, in both error modes:

    python benchmarks/truth/capture_facts.py OUT.jsonl [--jobs 10]

The result is the evidence for what the rules say: benchmarks/data/capture_facts_<gpu>_<torch>.jsonl.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import torch
import torch.nn.functional as F

STEPS = {}
MODES = ("thread_local", "global")


def fact(make):
    """Register a function that returns a step without arguments."""
    STEPS[make.__name__] = make
    return make


def simple(name, step, shape=(8, 16), dtype=torch.float32):
    def make():
        x = torch.rand(shape, device="cuda").to(dtype)
        return lambda: step(x)

    STEPS[name] = make


simple("item", lambda x: x.sum().item())
simple("bool", lambda x: bool(x.sum() > 0))
simple("tolist", lambda x: x.tolist())
simple("print", lambda x: repr(x))
simple("format_scalar", lambda x: f"{x.sum():.2f}")
simple("cpu", lambda x: x.cpu())
simple("cpu_non_blocking", lambda x: x.to("cpu", non_blocking=True))
simple("equal", lambda x: torch.equal(x, x + 1))
simple("allclose", lambda x: torch.allclose(x, x))
simple("nonzero", lambda x: x.nonzero())
simple("masked_select", lambda x: x[x > 0.5])
simple("mask_assign_number", lambda x: x.clone().__setitem__(x > 0.5, 0.0))
simple("mask_assign_cuda_scalar", lambda x: x.clone().__setitem__(x > 0.5, x.sum()))
simple("masked_fill_cuda_scalar", lambda x: x.masked_fill(x > 0.5, x.sum()))
simple("masked_fill_number", lambda x: x.masked_fill(x > 0.5, 0.0))
simple("where_three", lambda x: torch.where(x > 0.5, x, 0.0))
simple("unique", lambda x: x.unique())
simple("unique_consecutive", lambda x: x.flatten().unique_consecutive())
simple("bincount", lambda x: torch.bincount((x.flatten() * 9).long()))
simple("bincount_minlength", lambda x: torch.bincount((x.flatten() * 9).long(), minlength=10))
simple("histc", lambda x: torch.histc(x, bins=10))
simple("histc_range", lambda x: torch.histc(x, bins=10, min=0, max=1))
simple("repeat_interleave_tensor", lambda x: x.repeat_interleave((x[:, 0] * 3).long(), dim=0))
simple(
    "repeat_interleave_output_size",
    lambda x: x.repeat_interleave(
        torch.ones(8, dtype=torch.long, device="cuda"), dim=0, output_size=8
    ),
)
simple("repeat_interleave_int", lambda x: x.repeat_interleave(3, dim=0))
simple("one_hot_classes", lambda x: F.one_hot((x[:, 0] * 3).long(), 4))
simple("one_hot", lambda x: F.one_hot((x[:, 0] * 3).long()))
simple("multinomial", lambda x: torch.multinomial(x, 1))
simple("multinomial_replacement", lambda x: torch.multinomial(x, 4, replacement=True))
simple("multinomial_no_replacement", lambda x: torch.multinomial(x, 4))
simple("randperm_small", lambda x: torch.randperm(16, device="cuda"))
simple("randperm_large", lambda x: torch.randperm(100_000, device="cuda"))
simple("isin_small", lambda x: torch.isin(x, x[0, :2]))
simple("isin_large", lambda x: torch.isin(x, torch.rand(1000, device="cuda")))
simple("sort", lambda x: x.sort())
simple("topk", lambda x: x.topk(3))
simple("median", lambda x: x.median())
simple("quantile", lambda x: x.quantile(0.5))
simple("cov", lambda x: torch.cov(x))
simple("corrcoef", lambda x: torch.corrcoef(x))
simple("tensor_index_0d", lambda x: x[(x.sum() * 0).long()])
simple("list_index", lambda x: x[[0, 2]])
simple("cpu_tensor_index", lambda x: x[torch.tensor([0, 2])])
simple("index_assign_number", lambda x: x.clone().__setitem__((x[:2, 0] * 3).long(), 0))
simple("slice_assign_number", lambda x: x.clone().__setitem__((slice(None), 0), 1.0))
simple("element_assign_number", lambda x: x.clone().__setitem__((0, 0), 1.0))
simple("tensor_from_list", lambda x: x + torch.tensor([1.0] * 16, device="cuda"))
simple("tensor_from_number", lambda x: x + torch.tensor(2.0, device="cuda"))
simple("tensor_empty_list", lambda x: torch.cat([torch.tensor([], device="cuda"), x.flatten()]))
simple("full", lambda x: x + torch.full((16,), 2.0, device="cuda"))
simple("cpu_scalar_operand", lambda x: x * torch.tensor(2.0))
simple("h2d_blocking", lambda x: x + torch.ones(16).cuda())
simple("h2d_non_blocking_pageable", lambda x: x + torch.ones(16).to("cuda", non_blocking=True))
simple("pin_memory_new_block", lambda x: torch.empty(1 << 24, pin_memory=True))
simple("synchronize", lambda x: torch.cuda.synchronize())
simple("stream_synchronize", lambda x: torch.cuda.current_stream().synchronize())
simple("stream_query", lambda x: torch.cuda.current_stream().query())
simple("get_rng_state", lambda x: torch.cuda.get_rng_state())
simple("set_rng_state", lambda x: torch.cuda.set_rng_state(STATE[0]))
simple("manual_seed_same", lambda x: torch.cuda.manual_seed(torch.cuda.initial_seed()))
# The warm-up has set this seed before: what the capture sees is no change of it.
simple("manual_seed_new", lambda x: torch.cuda.manual_seed(1234))
simple("torch_manual_seed_new", lambda x: torch.manual_seed(1234))
simple("initial_seed", lambda x: torch.cuda.initial_seed())
simple("seed", lambda x: torch.cuda.seed())
simple("dropout", lambda x: F.dropout(x, 0.5))
simple("svd", lambda x: torch.linalg.svd(x))
simple("inv", lambda x: torch.linalg.inv(x[:, :8] + torch.eye(8, device="cuda")))
simple("inv_ex", lambda x: torch.linalg.inv_ex(x[:, :8] + torch.eye(8, device="cuda")))
simple("cholesky", lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(8, device="cuda")))
simple("cholesky_ex", lambda x: torch.linalg.cholesky_ex(x @ x.T + torch.eye(8, device="cuda")))
simple("solve", lambda x: torch.linalg.solve(x[:, :8] + torch.eye(8, device="cuda"), x))
simple("eigh", lambda x: torch.linalg.eigh(x @ x.T))
simple("eig", lambda x: torch.linalg.eig(x[:, :8]))
simple("qr", lambda x: torch.linalg.qr(x))
simple("lstsq", lambda x: torch.linalg.lstsq(x, x))
simple("det", lambda x: torch.linalg.det(x[:, :8]))
simple("slogdet", lambda x: torch.linalg.slogdet(x[:, :8]))
simple("matrix_exp", lambda x: torch.linalg.matrix_exp(x[:, :8]))
simple("fft", lambda x: torch.fft.rfft(x))
simple("istft", lambda x: torch.istft(torch.stft(x.flatten(), 16, return_complex=True), 16))
simple("to_sparse", lambda x: x.to_sparse())
simple(
    "ctc_cpu_lengths",
    lambda x: F.ctc_loss(
        x.log_softmax(-1)[:, None].expand(8, 2, 16),
        torch.ones(2, 3, dtype=torch.long, device="cuda"),
        torch.tensor([8, 8]),
        torch.tensor([3, 3]),
    ),
)
simple(
    "ctc_cuda_lengths",
    lambda x: F.ctc_loss(
        x.log_softmax(-1)[:, None].expand(8, 2, 16),
        torch.ones(2, 3, dtype=torch.long, device="cuda"),
        torch.tensor([8, 8], device="cuda"),
        torch.tensor([3, 3], device="cuda"),
    ),
)
simple("gaussian_nll", lambda x: F.gaussian_nll_loss(x, x, x))
simple("normal_validated", lambda x: torch.distributions.Normal(x, x + 1).log_prob(x))
simple(
    "normal_unvalidated",
    lambda x: torch.distributions.Normal(x, x + 1, validate_args=False).log_prob(x),
)
simple(
    "grouped_mm_bf16",
    lambda x: torch._grouped_mm(
        torch.ones(16, 32, device="cuda", dtype=torch.bfloat16),
        torch.ones(2, 32, 16, device="cuda", dtype=torch.bfloat16),
        offs=torch.tensor([8, 16], dtype=torch.int32).cuda() if False else OFFSETS[0],
    ),
)
simple("autocast_linear", lambda x: torch.autocast("cuda")(lambda: F.linear(x, x))())
simple("clip_grad_value_free", lambda x: torch.nn.utils.clip_grad_norm_([GRADED[0]], 1.0))
simple(
    "clip_grad_error_if_nonfinite",
    lambda x: torch.nn.utils.clip_grad_norm_([GRADED[0]], 1.0, error_if_nonfinite=True),
)

STATE, OFFSETS, GRADED = [], [], []


def module_step(name, build, shape=(8, 16)):
    def make():
        module = build().cuda()
        x = torch.rand(shape, device="cuda")

        def step():
            module(x).sum().backward()

        return step

    STEPS[name] = make


module_step("batchnorm_train", lambda: torch.nn.BatchNorm1d(16))
module_step("batchnorm_momentum_none", lambda: torch.nn.BatchNorm1d(16, momentum=None))
module_step("lstm", lambda: Recurrent(torch.nn.LSTM(16, 16)))
module_step("lstm_dropout", lambda: Recurrent(torch.nn.LSTM(16, 16, 2, dropout=0.5)))
module_step("gru", lambda: Recurrent(torch.nn.GRU(16, 16)))
module_step("conv", lambda: torch.nn.Conv2d(3, 8, 3), (2, 3, 16, 16))
module_step(
    "encoder_layer", lambda: torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), (2, 8, 16)
)


class Recurrent(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@fact
def checkpoint_preserving():
    from torch.utils.checkpoint import checkpoint

    layer, x = torch.nn.Linear(16, 16).cuda(), torch.rand(8, 16, device="cuda")
    return lambda: checkpoint(layer, x, use_reentrant=False).sum().backward()


@fact
def checkpoint_reentrant_preserving():
    from torch.utils.checkpoint import checkpoint

    layer = torch.nn.Linear(16, 16).cuda()
    x = torch.rand(8, 16, device="cuda", requires_grad=True)
    return lambda: checkpoint(layer, x, use_reentrant=True).sum().backward()


@fact
def embedding_max_norm():
    table, rows = torch.nn.Embedding(32, 16, max_norm=1.0).cuda(), torch.arange(8, device="cuda")
    return lambda: table(rows)


@fact
def embedding_backward():
    table, rows = torch.nn.Embedding(32, 16).cuda(), torch.arange(8, device="cuda")
    return lambda: table(rows).sum().backward()


@fact
def embedding_sparse_backward():
    table, rows = torch.nn.Embedding(32, 16, sparse=True).cuda(), torch.arange(8, device="cuda")
    return lambda: table(rows).sum().backward()


@fact
def own_generator_unregistered():
    generator = torch.Generator(device="cuda")
    return lambda: torch.rand(8, device="cuda", generator=generator)


@fact
def event_query():
    event = torch.cuda.Event()
    event.record()
    return lambda: event.query()


@fact
def event_synchronize():
    event = torch.cuda.Event()
    event.record()
    return lambda: event.synchronize()


@fact
def elapsed_time():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record()
    return lambda: start.elapsed_time(end)


@fact
def timed_inside():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    x = torch.rand(8, device="cuda")

    def step():
        start.record()
        x.sin()
        end.record()

    return step


@fact
def side_stream_not_forked():
    side, x = torch.cuda.Stream(), torch.rand(8, device="cuda")

    def step():
        with torch.cuda.stream(side):
            x.sin()

    return step


@fact
def side_stream_not_joined():
    side, x = torch.cuda.Stream(), torch.rand(8, device="cuda")

    def step():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.sin()

    return step


@fact
def side_stream_joined():
    side, x = torch.cuda.Stream(), torch.rand(8, device="cuda")

    def step():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.sin()
        torch.cuda.current_stream().wait_stream(side)

    return step


@fact
def wait_on_outside_work():
    side, x = torch.cuda.Stream(), torch.rand(8, device="cuda")
    with torch.cuda.stream(side):
        x.sin()
    return lambda: torch.cuda.current_stream().wait_stream(side)


def optimizer_step(name, build):
    def make():
        layer, x = torch.nn.Linear(16, 16).cuda(), torch.rand(8, 16, device="cuda")
        optimizer = build(layer.parameters())

        def step():
            optimizer.zero_grad(set_to_none=True)
            layer(x).sum().backward()
            optimizer.step()

        return step

    STEPS[name] = make


OPTIM = torch.optim
optimizer_step("sgd", lambda p: OPTIM.SGD(p, lr=0.1))
optimizer_step("sgd_momentum", lambda p: OPTIM.SGD(p, lr=0.1, momentum=0.9))
optimizer_step("sgd_tensor_lr", lambda p: OPTIM.SGD(p, lr=torch.tensor(0.1, device="cuda")))
optimizer_step(
    "sgd_tensor_lr_fused", lambda p: OPTIM.SGD(p, lr=torch.tensor(0.1, device="cuda"), fused=True)
)
for _name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "RMSprop", "Rprop"):
    _class = getattr(OPTIM, _name)
    optimizer_step(f"{_name}", _class)
    optimizer_step(f"{_name}_capturable", lambda p, c=_class: c(p, capturable=True))
    optimizer_step(
        f"{_name}_capturable_tensor_lr",
        lambda p, c=_class: c(p, capturable=True, lr=torch.tensor(1e-3, device="cuda")),
    )
optimizer_step("Adam_fused", lambda p: OPTIM.Adam(p, fused=True))
optimizer_step("Adam_fused_capturable", lambda p: OPTIM.Adam(p, fused=True, capturable=True))
optimizer_step("Adagrad", lambda p: OPTIM.Adagrad(p))
optimizer_step("Adagrad_fused", lambda p: OPTIM.Adagrad(p, fused=True))
optimizer_step("Adafactor", lambda p: OPTIM.Adafactor(p))


@fact
def grad_scaler():
    layer, x = torch.nn.Linear(16, 16).cuda(), torch.rand(8, 16, device="cuda")
    optimizer, scaler = OPTIM.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(layer(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


@fact
def grad_scaler_fused():
    layer, x = torch.nn.Linear(16, 16).cuda(), torch.rand(8, 16, device="cuda")
    optimizer = OPTIM.Adam(layer.parameters(), fused=True, capturable=True)
    scaler = torch.amp.GradScaler("cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(layer(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


SEEDS = count(10**9)  # far from what others seed with: the seed that is there already is captured


@fact
def manual_seed_changing():
    return lambda: torch.cuda.manual_seed(next(SEEDS))


@fact
def torch_manual_seed_changing():
    return lambda: torch.manual_seed(next(SEEDS))


@fact
def fork_rng():
    def step():
        with torch.random.fork_rng(devices=[0]):
            torch.rand(8, device="cuda")

    return step


@fact
def fork_rng_seeding():
    def step():
        with torch.random.fork_rng(devices=[0]):
            torch.manual_seed(next(SEEDS))
            torch.rand(8, device="cuda")

    return step


@fact
def set_rng_state_of_other_seed():
    torch.cuda.manual_seed(next(SEEDS))
    state = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(next(SEEDS))

    def step():
        torch.cuda.set_rng_state(state)
        torch.cuda.manual_seed(99) if not torch.cuda.is_current_stream_capturing() else None

    return step


@fact
def own_generator_seeded():
    generator = torch.Generator(device="cuda")
    return lambda: generator.manual_seed(next(SEEDS))


@fact
def own_generator_state():
    generator = torch.Generator(device="cuda")
    return lambda: generator.get_state()


def copy_fact(name, host, copy):
    def make():
        x, memory = torch.rand(8, device="cuda"), host()
        return lambda: copy(x, memory)

    STEPS[name] = make


def pinned():
    return torch.ones(8).pin_memory()


def pageable():
    return torch.ones(8)


copy_fact("h2d_pinned_blocking", pinned, lambda x, host: x + host.cuda())
copy_fact("h2d_pinned_non_blocking", pinned, lambda x, host: x + host.to("cuda", non_blocking=True))
copy_fact("h2d_into_blocking_pinned", pinned, lambda x, host: x.copy_(host))
copy_fact("h2d_into_pageable", pageable, lambda x, host: x.copy_(host))
copy_fact(
    "h2d_into_pageable_non_blocking", pageable, lambda x, host: x.copy_(host, non_blocking=True)
)
copy_fact("d2h_into_pinned_blocking", pinned, lambda x, host: host.copy_(x))
copy_fact("d2h_into_pinned", pinned, lambda x, host: host.copy_(x, non_blocking=True))
copy_fact("d2h_into_pageable", pageable, lambda x, host: host.copy_(x, non_blocking=True))
simple("pin_memory_method", lambda x: torch.ones(16).pin_memory())
simple(
    "pinned_inside_then_copied",
    lambda x: x + torch.ones(16).pin_memory().to("cuda", non_blocking=True),
)
simple("element_read_into_list", lambda x: [x[0, 0].item()])
simple("index_assign_cuda_number", lambda x: x.clone().__setitem__((0, 0), x[1, 1]))
simple("index_fill_number", lambda x: x.clone().index_fill_(0, (x[:2, 0] * 3).long(), 0.0))
simple("empty_cache", lambda x: torch.cuda.empty_cache())
simple("mem_get_info", lambda x: torch.cuda.mem_get_info())
simple("memory_allocated", lambda x: torch.cuda.memory_allocated())
simple("record_stream", lambda x: x.record_stream(torch.cuda.current_stream()))
simple("device_properties", lambda x: torch.cuda.get_device_properties(0))
simple("normal_tensor_std", lambda x: torch.normal(x, x))
simple("normal_number_std", lambda x: torch.normal(x, 1.0))
simple("poisson", lambda x: torch.poisson(x))
simple("standard_gamma", lambda x: torch._standard_gamma(x))
simple("categorical_validated", lambda x: torch.distributions.Categorical(logits=x).sample())
simple(
    "categorical_unvalidated",
    lambda x: torch.distributions.Categorical(logits=x, validate_args=False).sample(),
)
simple("assert_async", lambda x: torch._assert_async((x >= 0).all()))
simple("nonzero_static", lambda x: torch.nonzero_static(x > 0.5, size=16, fill_value=0))
simple("masked_scatter", lambda x: x.masked_scatter(x > 0.5, x + 1))
simple("pinv", lambda x: torch.linalg.pinv(x))
simple("matrix_rank", lambda x: torch.linalg.matrix_rank(x))
simple("nuclear_norm", lambda x: torch.linalg.matrix_norm(x, "nuc"))
simple("solve_triangular", lambda x: torch.linalg.solve_triangular(x[:, :8], x, upper=True))
simple("cholesky_solve", lambda x: torch.cholesky_solve(x, x[:, :8]))
simple("lu_factor", lambda x: torch.linalg.lu_factor(x[:, :8]))
simple("lu_factor_ex", lambda x: torch.linalg.lu_factor_ex(x[:, :8]))
simple(
    "pack_padded_sequence",
    lambda x: torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([16] * 8), batch_first=True),
)
simple("embedding_bag", lambda x: F.embedding_bag((x * 7).long(), x))
simple("clip_grad_value", lambda x: torch.nn.utils.clip_grad_value_([GRADED[0]], 1.0))


@fact
def encoder_eval_padding_mask():
    layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).cuda().eval()
    x = torch.rand(2, 8, 16, device="cuda")
    mask = torch.zeros(2, 8, dtype=torch.bool, device="cuda")
    mask[1, 4:] = True

    def step():
        with torch.no_grad():
            encoder(x, src_key_padding_mask=mask)

    return step


@fact
def side_stream_in_place_not_forked():
    side, x = torch.cuda.Stream(), torch.rand(8, device="cuda")

    def step():
        with torch.cuda.stream(side):
            x.sin_()

    return step


@fact
def side_stream_in_place_not_joined():
    side, x = torch.cuda.Stream(), torch.rand(8, device="cuda")

    def step():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.sin_()

    return step


@fact
def side_stream_forked_without_work():
    side = torch.cuda.Stream()
    x = torch.rand(8, device="cuda")

    def step():
        x.sin()
        side.wait_stream(torch.cuda.current_stream())

    return step


@fact
def side_stream_forked_by_event():
    side, x, ready = torch.cuda.Stream(), torch.rand(8, device="cuda"), torch.cuda.Event()

    def step():
        ready.record()
        side.wait_event(ready)
        with torch.cuda.stream(side):
            x.sin()
            done = side.record_event()
        torch.cuda.current_stream().wait_event(done)

    return step


@fact
def default_stream_inside():
    x = torch.rand(8, device="cuda")

    def step():
        with torch.cuda.stream(torch.cuda.default_stream()):
            x.sin_()

    return step


@fact
def wait_on_outside_event():
    side, x, event = torch.cuda.Stream(), torch.rand(8, device="cuda"), torch.cuda.Event()
    with torch.cuda.stream(side):
        x.sin()
        event.record()
    return lambda: torch.cuda.current_stream().wait_event(event)


@fact
def wait_on_unused_stream():
    side = torch.cuda.Stream()
    return lambda: torch.cuda.current_stream().wait_stream(side)


@fact
def wait_on_external_event():
    side, x = torch.cuda.Stream(), torch.rand(8, device="cuda")
    event = torch.cuda.Event(external=True)
    with torch.cuda.stream(side):
        x.sin()
        event.record()
    return lambda: torch.cuda.current_stream().wait_event(event)


@fact
def query_of_event_recorded_inside():
    event = torch.cuda.Event()

    def step():
        event.record()
        event.query()

    return step


@fact
def graph_replayed_inside():
    x, graph, side = torch.rand(8, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.sin()
    with torch.cuda.graph(graph):
        x.sin()
    return graph.replay


@fact
def warm_up_on_default_stream_kept_alive():
    layer, x = torch.nn.Linear(16, 16).cuda(), torch.rand(8, 16, device="cuda")
    kept = layer(x).sum()

    def step():
        assert kept is not None
        layer(x).sum().backward()

    return step


@fact
def input_with_history():
    layer, x = torch.nn.Linear(16, 16).cuda(), torch.rand(8, 16, device="cuda")
    before = torch.nn.Linear(16, 16).cuda()(x)
    return lambda: layer(before).sum().backward(retain_graph=True)


if hasattr(OPTIM, "Muon"):
    optimizer_step("Muon", lambda p: OPTIM.Muon([w for w in p if w.dim() == 2]))


@fact
def sparse_adam():
    table, rows = torch.nn.Embedding(32, 16, sparse=True).cuda(), torch.arange(8, device="cuda")
    optimizer = OPTIM.SparseAdam(table.parameters())

    def step():
        optimizer.zero_grad(set_to_none=True)
        table(rows).sum().backward()
        optimizer.step()

    return step


def scaled_step(name, **options):
    def make():
        layer, x = torch.nn.Linear(16, 16).cuda(), torch.rand(8, 16, device="cuda")
        optimizer = OPTIM.AdamW(layer.parameters(), **options)
        scaler = torch.amp.GradScaler("cuda")

        def step():
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(layer(x).sum()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

        return step

    STEPS[name] = make


scaled_step("grad_scaler_unscale_fused", fused=True, capturable=True)
scaled_step("grad_scaler_unscale_capturable", capturable=True)


@fact
def grad_scaler_get_scale():
    scaler, x = torch.amp.GradScaler("cuda"), torch.rand(8, device="cuda")

    def step():
        scaler.scale(x)
        scaler.get_scale()

    return step


@fact
def sgd_fused_grad_scaler():
    layer, x = torch.nn.Linear(16, 16).cuda(), torch.rand(8, 16, device="cuda")
    optimizer = OPTIM.SGD(layer.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(layer(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def sparse_eye(layout="coo"):
    eye = torch.eye(8).roll(1, 0)
    return (eye.to_sparse().coalesce() if layout == "coo" else eye.to_sparse_csr()).cuda()


def sparse_step(name, step, layout="coo"):
    def make():
        sparse, x = sparse_eye(layout), torch.rand(8, 16, device="cuda")
        return lambda: step(sparse, x)

    STEPS[name] = make


sparse_step("sparse_product", lambda a, x: a @ x)
sparse_step("sparse_product_transposed", lambda a, x: a.t() @ x)
sparse_step("sparse_product_of_two", lambda a, x: torch.sparse.mm(a, a))
sparse_step("sparse_softmax", lambda a, x: torch.sparse.softmax(a, 1))
sparse_step("sparse_sum", lambda a, x: torch.sparse.sum(a, 1))
sparse_step("sparse_to_dense", lambda a, x: a.to_dense())
sparse_step("sparse_mask", lambda a, x: x[:, :8].sparse_mask(a))
sparse_step("sparse_add", lambda a, x: a + a)
sparse_step("sparse_times_dense", lambda a, x: a * x[:, :8])
sparse_step("csr_product", lambda a, x: a @ x, "csr")
sparse_step("csr_product_transposed", lambda a, x: a.t() @ x, "csr")
sparse_step("csr_product_of_two", lambda a, x: a @ a, "csr")


@fact
def sparse_product_backward():
    a, x = sparse_eye(), torch.rand(8, 16, device="cuda", requires_grad=True)
    return lambda: (a @ x).sum().backward()


@fact
def csr_product_backward():
    a, x = sparse_eye("csr"), torch.rand(8, 16, device="cuda", requires_grad=True)
    return lambda: (a @ x).sum().backward()


@fact
def sparse_made_and_multiplied():
    rows, x = torch.randint(0, 8, (2, 5), device="cuda"), torch.rand(8, 16, device="cuda")
    values = torch.rand(5, device="cuda")
    return lambda: torch.sparse.mm(torch.sparse_coo_tensor(rows, values, (8, 8)), x)


def fake_quantized(name, step, zero_point):
    def make():
        scale, zeros = torch.rand(8, device="cuda") + 0.1, zero_point.cuda()
        x = torch.rand(8, 16, device="cuda")
        return lambda: step(x, scale, zeros)

    STEPS[name] = make


ZEROS = torch.zeros(8)
PER_CHANNEL = lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 0, -8, 7)  # noqa: E731
LEARNED = torch._fake_quantize_learnable_per_channel_affine
fake_quantized("fake_quantize_per_channel_integers", PER_CHANNEL, ZEROS.int())
fake_quantized("fake_quantize_per_channel_floats", PER_CHANNEL, ZEROS)
fake_quantized("fake_quantize_learned", lambda x, s, z: LEARNED(x, s, z, 0, -8, 7, 1.0), ZEROS)
fake_quantized(
    "fake_quantize_per_tensor",
    lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s[:1], z[:1], -8, 7),
    ZEROS.int(),
)


def quantization_aware(name, weights):
    def make():
        from torch.ao import quantization

        layer = torch.nn.Linear(16, 16)
        layer.qconfig = quantization.QConfig(
            quantization.default_fused_act_fake_quant, getattr(quantization, weights)
        )
        model = quantization.prepare_qat(torch.nn.Sequential(layer).train()).cuda()
        x = torch.rand(8, 16, device="cuda")
        return lambda: model(x).sum().backward()

    STEPS[name] = make


quantization_aware("quantization_aware_per_channel", "default_fused_per_channel_wt_fake_quant")
quantization_aware("quantization_aware_per_tensor", "default_fused_wt_fake_quant")


def prepare():
    """What steps find made, in the lists."""
    STATE[:] = [torch.cuda.get_rng_state()]
    OFFSETS[:] = [torch.tensor([8, 16], dtype=torch.int32, device="cuda")]
    GRADED[:] = [torch.nn.Parameter(torch.ones(8, device="cuda"))]
    GRADED[0].grad = torch.ones(8, device="cuda")


def try_step(name, mode):
    """Warm up, then capture once; the cause of a refusal is the first error, not the last."""
    prepare()
    step = STEPS[name]()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side, capture_error_mode=mode):
            step()
    except BaseException as error:
        while error.__context__ is not None:
            error = error.__context__
        return {"captures": False, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    graph.replay()
    torch.cuda.synchronize()
    return {"captures": True}


def in_own_process(job):
    name, mode = job
    command = [sys.executable, __file__, "--step", name, "--mode", mode]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return {"step": name, "mode": mode, "failed": "more than 120 s"}
    line = next((text for text in done.stdout.splitlines() if text.startswith("{")), None)
    if line is None:
        return {"step": name, "mode": mode, "failed": done.stderr[-400:]}
    return {"step": name, "mode": mode, **json.loads(line)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--step")
    parser.add_argument("--mode", default=MODES[0])
    parser.add_argument("--after", help="only the steps that are defined after this one")
    args = parser.parse_args()
    if args.step:
        print(json.dumps(try_step(args.step, args.mode)))
        return
    names = list(STEPS)
    if args.after:
        names = names[names.index(args.after) + 1 :]
    jobs = [(name, mode) for name in names for mode in MODES]
    about = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    with args.out.open("w") as out, ThreadPoolExecutor(args.jobs) as pool:
        out.write(json.dumps({"about": about}) + "\n")
        for result in pool.map(in_own_process, jobs):
            out.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
