"""Steps of several ranks, each with where it comes from: `python benchmarks/truth/ranks.py` decides all of them.

Each is a target of `graphdoctor analyze`, and runs on two GPUs as it is. What it makes first happens once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

SCENARIOS: dict[str, str] = {}  # by name: the source

C10D = "PyTorch, test/distributed/test_c10d_nccl.py and test_c10d_ops_nccl.py"
NOTES = "PyTorch's notes, 'Usage with DistributedDataParallel'"
FSDP = "torchtitan#3559"
OWN = "what training scripts do"

Made = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def scenario(source: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def note(make: Callable[[], Made]) -> Callable[[], Made]:
        SCENARIOS[make.__name__] = source
        return make

    return note


def rank() -> int:
    if not dist.is_initialized():
        dist.init_process_group("nccl")
    return dist.get_rank()


def mesh() -> DeviceMesh:
    rank()
    return init_device_mesh("cuda", (dist.get_world_size(),))


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (8, 16)), device="cuda")


@scenario(f"{C10D}: test_allreduce_in_cudagraph")
def all_reduce_twice() -> Made:
    rank()

    def step(x):
        y = x + 0.0
        dist.all_reduce(y)
        dist.all_reduce(y)
        return y + 0.0

    return step, (values(),)


@scenario(C10D)
def all_reduce_async() -> Made:
    rank()

    def step(x):
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        z = x.exp()
        work.wait()
        return y + z

    return step, (values(),)


@scenario(C10D)
def all_reduce_max_and_average() -> Made:
    rank()

    def step(x):
        largest, y = x.abs().amax(), x.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        dist.all_reduce(y)
        return y / dist.get_world_size() / largest

    return step, (values(),)


@scenario(C10D)
def broadcast_from_the_last_rank() -> Made:
    rank()

    def step(x):
        y = x * 2
        dist.broadcast(y, src=dist.get_world_size() - 1)
        return x + y

    return step, (values(),)


@scenario(C10D)
def all_gather_of_a_list() -> Made:
    rank()

    def step(x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return torch.cat(parts).sum(1)

    return step, (values(),)


@scenario(f"{C10D}: test_reduce_scatter_base_ops")
def gather_and_scatter_of_one_tensor() -> Made:
    rank()

    def step(x):
        count = dist.get_world_size()
        whole = x.new_empty(count * x.shape[0], x.shape[1])
        dist.all_gather_into_tensor(whole, x)
        part = torch.empty_like(x)
        dist.reduce_scatter_tensor(part, whole * 2)
        return part

    return step, (values(),)


@scenario(C10D)
def reduce_scatter_of_a_list() -> Made:
    rank()

    def step(x):
        part = torch.empty_like(x)
        dist.reduce_scatter(part, [x * (i + 1) for i in range(dist.get_world_size())])
        return part

    return step, (values(),)


@scenario(f"{C10D}: test_all_to_all_single")
def all_to_all_of_equal_parts() -> Made:
    rank()

    def step(x):
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x * 2)
        return y

    return step, (values(),)


@scenario(f"{C10D}: test_all_to_all_single")
def all_to_all_of_sizes_that_stay() -> Made:
    me = rank()
    sizes = [1, 3] if me == 0 else [3, 1]  # what each rank sends, and so what it gets

    def step(x):
        y = x.new_empty(4, 16)
        dist.all_to_all_single(y, x, output_split_sizes=sizes, input_split_sizes=sizes)
        return y * 2

    return step, (values(4, 16),)


@scenario("expert parallelism: torchtitan#3559, DeepEP#62")
def all_to_all_of_sizes_from_the_device() -> Made:
    rank()

    def step(x):
        count = dist.get_world_size()
        to = (x.sum(1) > 0).long() % count
        sent = torch.stack([(to == i).sum() for i in range(count)])
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        sizes_in, sizes_out = sent.tolist(), got.tolist()
        y = x.new_empty(sum(sizes_out), x.shape[1])
        dist.all_to_all_single(y, x[to.argsort()], sizes_out, sizes_in)
        return y.sum()

    return step, (values(),)


@scenario("PyTorch, test/distributed/test_functional_api.py")
def functional_collectives() -> Made:
    rank()
    group = dist.group.WORLD

    def step(x):
        y = functional.all_reduce(x * 2, "sum", group)
        z = functional.all_gather_tensor(x, 0, group)
        return y.sum() + z.sum(0)

    return step, (values(),)


@scenario("PyTorch, test/distributed/test_functional_api.py")
def functional_collectives_with_gradients() -> Made:
    rank()
    layer = nn.Linear(16, 4, device="cuda")
    group = dist.group.WORLD

    def step(x):
        layer.zero_grad()
        y = functional.all_gather_tensor_autograd(layer(x), 0, group)
        loss = y.square().mean()
        loss.backward()
        return loss

    return step, (values(),)


@scenario(f"{C10D}: test_all_reduce_coalesced_manager_nccl")
def coalesced_all_reduce() -> Made:
    rank()

    def step(x):
        tensors = [x + i for i in range(3)]
        with dist._coalescing_manager(device=x.device, async_ops=False):
            for one in tensors:
                dist.all_reduce(one)
        return torch.stack(tensors)

    return step, (values(),)


@scenario(C10D)
def reduce_to_one_rank() -> Made:
    rank()

    def step(x):
        y = x * 2
        dist.reduce(y, dst=0)
        return y if dist.get_rank() == 0 else x

    return step, (values(),)


@scenario("pipeline parallelism: sends and receives of stages")
def neighbors_send_and_receive() -> Made:
    me = rank()

    def step(x):
        other, got = 1 - me, torch.empty_like(x)
        ops = [dist.P2POp(dist.isend, x * 2, other), dist.P2POp(dist.irecv, got, other)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return got + x

    return step, (values(),)


@scenario(f"{C10D}: test_nccl_barrier")
def barrier() -> Made:
    rank()

    def step(x):
        y = x * 2
        dist.all_reduce(y)
        dist.barrier()
        return y

    return step, (values(),)


@scenario(f"{C10D}: test_nccl_barrier")
def barrier_that_is_waited_for() -> Made:
    rank()

    def step(x):
        dist.barrier(async_op=True).wait()
        return x * 2

    return step, (values(),)


@scenario(f"{C10D}: test_all_gather_object")
def objects_of_all_ranks() -> Made:
    rank()

    def step(x):
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, {"rows": len(x)})
        return x * found[0]["rows"]

    return step, (values(),)


@scenario(f"{C10D}: test_broadcast_object_list")
def objects_of_one_rank() -> Made:
    rank()

    def step(x):
        scales = [2.0]
        dist.broadcast_object_list(scales)
        return x * scales[0]

    return step, (values(),)


@scenario(C10D)
def asks_whether_work_is_done() -> Made:
    rank()

    def step(x):
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        work.is_completed()
        work.wait()
        return y

    return step, (values(),)


@scenario("pytorch#196133")
def unique_after_all_reduce() -> Made:
    rank()

    def step(x):
        y = x.round()
        dist.all_reduce(y)
        return torch.unique(y).sum()

    return step, (values(),)


@scenario(OWN)
def all_reduced_loss_is_logged() -> Made:
    rank()
    losses: list[float] = []

    def step(x):
        loss = x.square().mean()
        dist.all_reduce(loss)
        losses[:] = [loss.item()]
        return loss

    return step, (values(),)


@scenario(OWN)
def host_counter_scales_what_is_reduced() -> Made:
    rank()
    seen = [0]

    def step(x):
        seen[0] += 1
        y = x * seen[0]
        dist.all_reduce(y)
        return y

    return step, (values(),)


@scenario("sglang#31852")
def group_of_its_own() -> Made:
    rank()
    group = dist.new_group([0, 1])

    def step(x):
        y = x * 2
        dist.all_reduce(y, group=group)
        return y

    return step, (values(),)


@scenario("lazy initialization: pytorch#115388")
def group_first_used_in_the_capture() -> Made:
    rank()
    group = dist.new_group([0, 1])

    def step(x):
        y = x * 2
        dist.all_reduce(y, group=group if torch.cuda.is_current_stream_capturing() else None)
        return y

    return step, (values(),)


@scenario(C10D)
def collective_on_a_side_stream() -> Made:
    rank()
    side = torch.cuda.Stream()

    def step(x):
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(y)
        torch.cuda.current_stream().wait_stream(side)
        return y + 1

    return step, (values(),)


@scenario(C10D)
def collective_on_a_stream_that_is_not_joined() -> Made:
    rank()
    side = torch.cuda.Stream()

    def step(x):
        y, z = x * 2, x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(y)
        return z

    return step, (values(),)


@scenario(C10D)
def kernel_on_a_stream_that_is_not_joined() -> Made:
    rank()
    side = torch.cuda.Stream()

    def step(x):
        y, z = x * 2, x + 1
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(y)
            y += 1
        return z

    return step, (values(),)


@scenario("lazy initialization: a group that was created with a device")
def group_with_a_device_first_used_in_the_capture() -> Made:
    if not dist.is_initialized():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl", device_id=device)

    def step(x):
        y = x * 2
        if torch.cuda.is_current_stream_capturing():
            dist.all_reduce(y)
            return y
        return y * dist.get_world_size()

    return step, (torch.ones(4, 4, device="cuda"),)


@scenario(OWN)
def host_values_over_gloo() -> Made:
    rank()
    group = dist.new_group([0, 1], backend="gloo")

    def step(x):
        y = x.sum().cpu()
        dist.all_reduce(y, group=group)
        return x * y.item()

    return step, (values(),)


@scenario("NCCL's user guide: collectives have to be called in one order")
def collective_of_one_rank_only() -> Made:
    me = rank()
    dist.all_reduce(values())  # the group is in use already

    def step(x):
        y = x * 2
        if me == 0 and torch.cuda.is_current_stream_capturing():
            dist.all_reduce(y)
        return y

    return step, (values(),)


class Net(nn.Module):
    """Two layers, of which the second may go unused; `norm` is what lies between them."""

    def __init__(self, *, norm: nn.Module | None = None, uses_both: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = norm or nn.Identity()
        self.second = nn.Linear(16, 16)
        self.uses_both = uses_both

    def forward(self, x):
        y = self.norm(self.first(x)).relu()
        return self.second(y) if self.uses_both else y


def parallel(model: nn.Module, *, on_default_stream: bool = False, **options: Any) -> nn.Module:
    rank()
    model = model.cuda()
    if on_default_stream:
        return DistributedDataParallel(model, **options)
    with torch.cuda.stream(torch.cuda.Stream()):
        return DistributedDataParallel(model, **options)


def training(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Made:
    sgd = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x):
        sgd.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        sgd.step()
        return loss

    return step, (values(),)


@scenario(NOTES)
def ddp() -> Made:
    return training(parallel(Net()))


@scenario(NOTES)
def ddp_on_the_default_stream() -> Made:
    return training(parallel(Net(), on_default_stream=True))


@scenario("PyTorch, torch/testing/_internal/distributed/distributed_test.py")
def ddp_that_looks_for_unused_parameters() -> Made:
    return training(parallel(Net(), find_unused_parameters=True))


@scenario("PyTorch, torch/testing/_internal/distributed/distributed_test.py")
def ddp_with_an_unused_parameter() -> Made:
    return training(parallel(Net(uses_both=False), find_unused_parameters=True))


@scenario("PyTorch, torch/testing/_internal/distributed/distributed_test.py")
def ddp_of_a_static_graph() -> Made:
    return training(parallel(Net(), static_graph=True))


@scenario("PyTorch, torch/testing/_internal/distributed/distributed_test.py")
def ddp_with_gradients_in_buckets() -> Made:
    return training(parallel(Net(), gradient_as_bucket_view=True))


@scenario("PyTorch, torch/testing/_internal/distributed/distributed_test.py")
def ddp_that_accumulates() -> Made:
    model = parallel(Net())
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x):
        sgd.zero_grad()
        with model.no_sync():
            model(x).square().mean().backward()
        loss = model(x + 1).square().mean()
        loss.backward()
        sgd.step()
        return loss

    return step, (values(),)


@scenario(f"{C10D}: test_bf16_compress_wrapper_nccl")
def ddp_with_compressed_gradients() -> Made:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model: Any = parallel(Net())
    model.register_comm_hook(None, bf16_compress_hook)
    return training(model)


@scenario("PyTorch, torch/testing/_internal/distributed/distributed_test.py: DDP buffers")
def ddp_with_batch_norm() -> Made:
    return training(parallel(Net(norm=nn.BatchNorm1d(16))))


@scenario("PyTorch, torch/testing/_internal/distributed/distributed_test.py: SyncBatchNorm")
def ddp_with_synchronized_batch_norm() -> Made:
    rank()
    return training(parallel(nn.SyncBatchNorm.convert_sync_batchnorm(Net(norm=nn.BatchNorm1d(16)))))


@scenario("physicsnemo#107: Adam under DDP")
def ddp_with_adam() -> Made:
    model = parallel(Net())
    return training(model, torch.optim.Adam(model.parameters(), lr=0.01, capturable=True))


@scenario("PyTorch: an optimizer that is not capturable")
def ddp_with_adam_that_counts_on_the_host() -> Made:
    model = parallel(Net())
    return training(model, torch.optim.Adam(model.parameters(), lr=0.01, foreach=False))


@scenario(OWN)
def ddp_with_a_schedule_on_the_host() -> Made:
    model = parallel(Net())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda done: 1.0 + done % 3)
    inner, inputs = training(model, sgd)

    def step(x):
        loss = inner(x)
        schedule.step()
        return loss

    return step, inputs


@scenario(OWN)
def ddp_that_clips_gradients() -> Made:
    model = parallel(Net())
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x):
        sgd.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        sgd.step()
        return loss

    return step, (values(),)


@scenario(OWN)
def ddp_that_logs_its_loss() -> Made:
    inner, inputs = training(parallel(Net()))
    log: list[float] = []

    def step(x):
        loss = inner(x)
        log[:] = [float(loss)]
        return loss

    return step, inputs


@scenario(OWN)
def ddp_with_dropout() -> Made:
    return training(parallel(Net(norm=nn.Dropout(0.5))))


@scenario("PyTorch, torch/testing/_internal/distributed/distributed_test.py: autocast")
def ddp_in_bfloat16() -> Made:
    model = parallel(Net())
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x):
        sgd.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = model(x).float().square().mean()
        loss.backward()
        sgd.step()
        return loss

    return step, (values(),)


def language_model(kind: str, **options: Any) -> nn.Module:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers as hf

    if kind == "gpt2":
        return hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=32, vocab_size=64)
        )
    return hf.BertForMaskedLM(
        hf.BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=32, vocab_size=64, **options,
        )
    )  # fmt: skip


def of_tokens(model: Any) -> Made:
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(tokens):
        sgd.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        sgd.step()
        return loss

    return step, (torch.randint(0, 64, (2, 16), device="cuda"),)


@scenario("Hugging Face transformers: GPT-2 under DDP")
def ddp_of_gpt2() -> Made:
    return of_tokens(parallel(language_model("gpt2")))


@scenario("Hugging Face transformers: BERT under DDP")
def ddp_of_bert() -> Made:
    return of_tokens(parallel(language_model("bert")))


@scenario("Hugging Face transformers: BERT under DDP, whose attention drops nothing out")
def ddp_of_bert_without_dropout_in_attention() -> Made:
    return of_tokens(parallel(language_model("bert", attention_probs_dropout_prob=0.0)))


@scenario("Hugging Face transformers: BERT under DDP, with attention of plain operators")
def ddp_of_bert_with_eager_attention() -> Made:
    return of_tokens(parallel(language_model("bert", attn_implementation="eager")))


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    over = mesh()
    with torch.cuda.stream(torch.cuda.Stream()):
        model = model.cuda()
        for layer in [each for each in model.modules() if isinstance(each, nn.Linear)]:
            fully_shard(layer, mesh=over, **options)
        fully_shard(model, mesh=over, **options)
    return model


@scenario(f"{FSDP}: the default policy")
def fsdp() -> Made:
    return training(sharded(Net()))


@scenario(f"{FSDP}: reshard_after_forward=always")
def fsdp_that_always_reshards() -> Made:
    return training(sharded(Net(), reshard_after_forward=True))


@scenario(f"{FSDP}: reshard_after_forward=never")
def fsdp_that_never_reshards() -> Made:
    return training(sharded(Net(), reshard_after_forward=False))


@scenario("PyTorch, test/distributed/_composable/fsdp")
def fsdp_in_bfloat16() -> Made:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return training(sharded(Net(), mp_policy=policy))


@scenario("PyTorch, test/distributed/_composable/fsdp/test_fully_shard_clip_grad_norm_.py")
def fsdp_that_clips_gradients() -> Made:
    model = sharded(Net())
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x):
        sgd.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        sgd.step()
        return loss

    return step, (values(),)


@scenario("Hugging Face transformers: GPT-2 under fully_shard")
def fsdp_of_gpt2() -> Made:
    from torch.distributed.fsdp import fully_shard

    over, model = mesh(), language_model("gpt2")
    with torch.cuda.stream(torch.cuda.Stream()):
        model = model.cuda()
        for block in model.transformer.h:  # type: ignore[union-attr]
            fully_shard(block, mesh=over)
        fully_shard(model, mesh=over)
    return of_tokens(model)


@scenario("PyTorch, test/distributed/tensor/parallel/test_tp_examples.py")
def tensor_parallel() -> Made:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    over = mesh()
    torch.manual_seed(0)
    plan = {"first": ColwiseParallel(), "second": RowwiseParallel()}
    return training(parallelize_module(Net().cuda(), over, plan))


@scenario("PyTorch, test/distributed/tensor/parallel/test_tp_examples.py")
def sequence_parallel() -> Made:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    over = mesh()
    torch.manual_seed(0)
    plan = {
        "first": ColwiseParallel(input_layouts=Shard(0)),
        "second": RowwiseParallel(output_layouts=Shard(0)),
    }
    return training(parallelize_module(Net().cuda(), over, plan))
