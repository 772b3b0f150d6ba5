"""Process groups on the emulated device: what a step of several ranks sees, in a world of one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from graphdoctor.device.emulated import EmulatedDevice, EmulationLimit
from graphdoctor.device.observe.dispatch import python_body
from graphdoctor.device.observe.operators import facts_of
from tests.support.emulated import Seen, captured, device

__all__ = ["device"]

WAITS = "operation not permitted when stream is capturing"


@pytest.fixture
def group(device: EmulatedDevice) -> EmulatedDevice:
    """The only rank of a group over what is called nccl."""
    dist.init_process_group("nccl")
    return device


def seen(device: EmulatedDevice, body) -> Seen:
    observer = Seen()
    with device.observed_by(observer):
        body()
    return observer


def refusal_of(body) -> str:
    """What the capture refused, which torch.cuda.graph hides behind an error of its own."""
    with pytest.raises(RuntimeError, match="during capture") as error:
        captured(body)
    return str(error.value.__context__)


def test_a_group_over_nccl_says_so_and_ends_with_the_device() -> None:
    in_this_build = dist.is_nccl_available()
    with EmulatedDevice():
        dist.init_process_group("nccl")
        assert dist.get_backend() == "nccl"
        assert dist.is_nccl_available()
    assert not dist.is_initialized()
    assert dist.is_nccl_available() == in_this_build


@pytest.mark.parametrize(
    "told",
    [
        {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "5", "WORLD_SIZE": "8"},
        {"LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2"},
        {"RANK": "1", "WORLD_SIZE": "2"},  # started by hand
    ],
)
def test_each_rank_has_the_device_of_its_number(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str]
) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with EmulatedDevice():
        assert torch.cuda.device_count() == 2
        assert torch.ones(2, device="cuda").device == torch.device("cuda", 1)
        assert torch.ones(2).to("cuda:1").get_device() == 1
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.ones(2, device="cuda:0")


def test_a_collective_is_an_operator_that_a_replay_runs_again(group: EmulatedDevice) -> None:
    x, y = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")

    def body() -> None:
        y.copy_(x)
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        y.add_(1)

    observed = seen(group, body)
    assert "allreduce_" in observed.calls
    assert observed.events == []
    graph, _ = captured(body)
    assert [entry.facts.base_name for entry in graph.tape.entries][1] == "allreduce_"
    x.fill_(5)
    graph.replay()
    assert y.equal(torch.full((4,), 6.0, device="cuda"))


def test_a_tensor_that_nobody_waited_for_leaves_its_user_in_doubt(group: EmulatedDevice) -> None:
    y = torch.ones(4, device="cuda")

    def body(*, waits: bool) -> None:
        work = dist.all_reduce(y, async_op=True)
        if waits:
            work.wait()
        y.add_(1)

    alone = "world of one rank"
    assert all(alone in text for text in seen(group, lambda: body(waits=True)).fallbacks)
    assert any("a race" in text for text in seen(group, lambda: body(waits=False)).fallbacks)


@pytest.mark.parametrize(
    ("called", "event"),
    [
        (lambda: dist.barrier(), "barrier"),
        (lambda: dist.barrier(async_op=True).wait(), "barrier"),
        (lambda: dist.broadcast_object_list([1]), "object-collective"),
        (lambda: dist.all_gather_object([None], 1), "object-collective"),
    ],
)
def test_a_capture_refuses_what_makes_the_host_wait_for_ranks(
    group: EmulatedDevice, called, event: str
) -> None:
    observed = seen(group, called)
    assert [kind for kind, _ in observed.events] == [event]
    assert WAITS in refusal_of(called)


def test_objects_over_a_group_for_the_host_do_not_touch_the_device(device: EmulatedDevice) -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl")
    assert seen(device, lambda: dist.broadcast_object_list([1])).events == []


def test_asking_whether_a_collective_is_done_is_refused(group: EmulatedDevice) -> None:
    y = torch.ones(4, device="cuda")
    dist.all_reduce(y)
    assert WAITS in refusal_of(lambda: dist.all_reduce(y, async_op=True).is_completed())


def test_a_capture_refuses_a_group_that_nobody_has_used(group: EmulatedDevice) -> None:
    y = torch.ones(4, device="cuda")
    assert "a communicator cannot be made" in refusal_of(lambda: dist.all_reduce(y))
    dist.all_reduce(y)
    captured(lambda: dist.all_reduce(y))


def test_a_group_that_knows_its_device_has_a_communicator_from_the_start(
    device: EmulatedDevice,
) -> None:
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    captured(lambda: dist.all_reduce(torch.ones(4, device="cuda")))


def test_who_takes_the_future_of_a_collective_waits_for_it_there(group: EmulatedDevice) -> None:
    def body(*, waits: bool) -> None:
        y = torch.ones(4, device="cuda")
        future = dist.all_reduce(y, async_op=True).get_future()
        if waits:
            future.wait()
        y.add_(1)

    assert any("a race" in text for text in seen(group, lambda: body(waits=False)).fallbacks)
    assert not any("a race" in text for text in seen(group, lambda: body(waits=True)).fallbacks)


def test_a_storage_that_a_capture_frees_has_memory_again_in_each_replay(
    device: EmulatedDevice,
) -> None:
    x, y = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    whole = torch.empty(4, device="cuda")
    storage = whole.untyped_storage()
    size = storage.size()

    def body() -> None:
        storage.resize_(size)
        whole.copy_(x).mul_(2)
        y.copy_(whole)
        storage.resize_(0)

    storage.resize_(0)
    graph, _ = captured(body)
    x.fill_(3)
    graph.replay()
    assert y.equal(torch.full((4,), 6.0, device="cuda"))
    assert storage.size() == 0


def test_a_function_of_an_operator_s_name_with_other_arguments_is_not_its_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `record_grad_output_stream` of torch 2.15, which calls the operator of its name."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    func = torch.ops.fsdp.chunk_cat.default
    monkeypatch.setattr(_fsdp_collectives, "chunk_cat", lambda tensors, dim: None)
    assert python_body(func, facts_of(func)) is None

    def made_for_all_devices(tensors, dim, num_chunks, out): ...

    monkeypatch.setattr(
        _fsdp_collectives, "_chunk_cat_default", made_for_all_devices, raising=False
    )
    assert python_body(func, facts_of(func)) is made_for_all_devices


def test_gradients_of_several_dtypes_are_copied_in_by_what_runs_for_one(
    group: EmulatedDevice,
) -> None:
    """`chunk_cat_mixed_dtype` of torch 2.15 is in C++, and `fully_shard` calls it in each backward pass."""
    func = torch.ops.fsdp.chunk_cat.default
    body = python_body(func, replace(facts_of(func), base_name="chunk_cat_mixed_dtype"))
    assert body is not None
    gradients = [torch.ones(2, 3).bfloat16(), torch.full((2, 3), 2.0)]
    out = torch.empty(2, 6)
    body(gradients, dim=0, num_chunks=2, out=out)
    assert out.tolist() == [[1.0] * 3 + [2.0] * 3] * 2


def test_sharding_without_a_mesh_lies_on_the_device(group: EmulatedDevice) -> None:
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(4, 4).cuda())
    adam = torch.optim.AdamW(model.parameters(), capturable=True)
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    adam.step()
    assert model.weight.is_cuda


@pytest.mark.parametrize("reshards", [True, False])
def test_sharded_parameters_are_captured_after_a_single_step(
    group: EmulatedDevice, *, reshards: bool
) -> None:
    """Its first step makes streams, buffers and an optimizer's state; replays go on where it ended."""
    from torch.distributed.fsdp import fully_shard

    losses = []
    for warm_ups in (1, 2):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)).cuda()
        for part in (*model, model):
            fully_shard(part, reshard_after_forward=reshards)
        adam = torch.optim.AdamW(model.parameters(), lr=0.1, capturable=True)
        loss = torch.zeros((), device="cuda")

        def step(model=model, adam=adam, loss=loss) -> None:
            adam.zero_grad()
            found = model(torch.ones(2, 4, device="cuda")).square().mean()
            found.backward()
            adam.step()
            loss.copy_(found.detach())

        for _ in range(warm_ups):
            step()
        graph, _ = captured(step)
        replayed = []
        for _ in range(3):
            graph.replay()
            replayed.append(loss.item())
        losses.append(replayed)
    after_one, after_two = losses
    assert after_one[1:] == after_two[:2]
    assert len(set(after_one)) == 3


def test_a_fake_tensor_mode_propagates_shapes_undisturbed(device: EmulatedDevice) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        made = torch.empty_strided((4, 8), (8, 1), device="cpu") @ torch.empty(8, 2)
    assert made.shape == (4, 2)
    assert type(made).__name__ == "FakeTensor"


class Halves(torch.nn.Module):
    """Of its two layers the second may go unused."""

    def __init__(self, *, uses_both: bool) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, device="cuda")
        self.second = torch.nn.Linear(4, 4, device="cuda")
        self.uses_both = uses_both

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y) if self.uses_both else y


def training(*, uses_both: bool = True, side: bool = True, steps: int = 11, **options: bool):
    """A warmed-up DDP module's training step."""
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        model = DistributedDataParallel(Halves(uses_both=uses_both), **options)
    x = torch.ones(2, 4, device="cuda")

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    for _ in range(steps):
        step()
    return step


@pytest.mark.parametrize("steps", [3, 9, 10, 11, 99, 100])
def test_ddp_is_captured_when_it_has_stopped_to_time_itself(
    group: EmulatedDevice, steps: int
) -> None:
    """As two H200s refused 3, 9, 10 and 100 steps before a capture, and took 11, 98 and 99."""
    step = training(steps=steps)
    if steps in (11, 99):
        captured(step)
    else:
        assert "reads its timers" in refusal_of(step)


def test_the_wait_for_an_asynchronous_collective_asks_the_device_where_it_blocks(
    group: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = torch.ones(4, device="cuda")

    def body() -> None:
        dist.all_reduce(y, async_op=True).wait()

    body()
    captured(body)
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    assert "Work.wait()" in refusal_of(body)
    captured(lambda: dist.all_reduce(y))  # two H200s took it


@pytest.mark.parametrize(
    "options", [{}, {"static_graph": True}, {"find_unused_parameters": True}], ids=str
)
def test_a_step_of_ddp_made_on_a_side_stream_is_captured(
    group: EmulatedDevice, options: dict[str, bool]
) -> None:
    graph, _ = captured(training(**options))
    graph.replay()


def test_an_unused_parameter_is_read_on_the_host_and_the_module_works_after_the_refusal(
    group: EmulatedDevice,
) -> None:
    step = training(uses_both=False, find_unused_parameters=True)
    assert "a blocking copy from device to host" in refusal_of(step)
    step()


def test_a_script_that_does_as_the_page_says_replays_what_eager_computes(
    group: EmulatedDevice,
) -> None:
    """Made and warmed up on a side stream, 11 steps; the graph is given back before the group."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model = DistributedDataParallel(Halves(uses_both=True))
    x = torch.ones(2, 4, device="cuda")
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        sgd.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        sgd.step()
        return loss.detach()

    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(11):
            step()
    torch.cuda.current_stream().wait_stream(side)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = [torch.randn(2, 4, device="cuda") for _ in range(3)]
    eager = []
    for batch in batches:
        x.copy_(batch)
        eager.append(step())
    graph, loss = captured(step)
    model.load_state_dict(start)
    for batch, expected in zip(batches, eager, strict=True):
        x.copy_(batch)
        graph.replay()
        assert torch.equal(loss, expected)
    del graph
    dist.destroy_process_group()
    assert not dist.is_initialized()


def test_ddp_made_on_the_default_stream_is_refused(group: EmulatedDevice) -> None:
    assert "legacy stream" in refusal_of(training(side=False))


def test_sharded_parameters_of_no_memory_yet_are_put_on_the_device_and_initialized(
    group: EmulatedDevice,
) -> None:
    """As PyTorch's example of FSDP2 does: `uniform_` of a DTensor copies between fake tensors."""
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = torch.nn.Linear(64, 4)
    fully_shard(model)
    model.to_empty(device="cuda")
    torch.nn.init.zeros_(model.weight)
    model.reset_parameters()
    weight = model.weight.to_local()
    assert 0.03 < weight.std().item() < 0.13
    assert weight.abs().max().item() <= 0.125


def test_random_numbers_of_a_dtensor_are_drawn_and_what_a_replay_draws_is_unknown(
    group: EmulatedDevice,
) -> None:
    mesh = init_device_mesh("cuda", (1,))
    shard = distribute_tensor(torch.zeros(64, device="cuda"), mesh, [Shard(0)])
    shard.normal_()
    first = shard.to_local().clone()
    assert 0.5 < first.std().item() < 2.0
    shard.normal_()
    assert not torch.equal(shard.to_local(), first)
    with pytest.raises(EmulationLimit, match=r"run_dtensor_rng_op|draws for a DTensor"):
        captured(lambda: shard.normal_())


def test_random_numbers_of_a_dtensor_follow_the_generator_that_it_was_given(
    group: EmulatedDevice,
) -> None:
    shard = distribute_tensor(
        torch.zeros(64, device="cuda"), init_device_mesh("cuda", (1,)), [Shard(0)]
    )
    own = torch.Generator("cuda").manual_seed(3)
    drawn = [shard.normal_(generator=own).to_local().clone() for _ in range(2)]
    own.manual_seed(3)
    again = [shard.normal_(generator=own).to_local().clone() for _ in range(2)]
    assert not torch.equal(*drawn)
    assert all(map(torch.equal, drawn, again))
