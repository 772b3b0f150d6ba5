"""Operators are recorded with their line, module, phase, memory and arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphdoctor.record import operators
from graphdoctor.target.frames import Place, locate
from graphdoctor.values.host_events import CaptureQuery, Sync, TensorRepr
from graphdoctor.values.recording import Iteration, Op, TensorUse
from tests.support.diagnosing import recorded


def iteration_of(example: Callable[[], object], *, index: int = 1) -> Iteration:
    return recorded(example, iterations=index + 1).captured[index]


def ops_named(iteration: Iteration, base_name: str) -> list[Op]:
    return [op for op in iteration.ops if op.base_name == base_name]


def source_of(op: Op) -> str:
    """The text of the operator's line in this file."""
    assert op.location is not None and op.location.file == __file__
    with open(__file__) as file:
        return file.read().splitlines()[op.location.line - 1].strip()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * 2 * x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = checkpoint(self.again, x, use_reentrant=False, preserve_rng_state=False)
        x = Square.apply(x)
        return x.sigmoid()


def training() -> object:
    model, loss_of = Net().cuda(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, (torch.rand(2, 4, device="cuda"), torch.rand(2, 4, device="cuda"))


def test_a_backward_operator_has_the_line_and_module_of_its_forward() -> None:
    iteration = iteration_of(training)
    (backward,) = ops_named(iteration, "sigmoid_backward")
    assert backward.phase == "backward" and source_of(backward) == "return x.sigmoid()"
    assert backward.forward_index is not None
    assert iteration.ops[backward.forward_index].base_name == "sigmoid"
    products = ops_named(iteration, "mm")
    assert {op.phase for op in products} == {"backward"}
    assert [op.module for op in products] == ["again.0", "again.0", "first"]
    assert source_of(products[-1]) == "x = self.first(x)"


def test_a_backward_of_ones_own_has_its_own_line() -> None:
    own = [op for op in ops_named(iteration_of(training), "mul") if op.phase == "backward"]
    assert [source_of(op) for op in own] == ["return gradient * 2 * x"] * 2


def test_a_backward_operator_of_the_engines_own_thread_has_the_module_of_its_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def as_on_a_gpu(depth: int = 1) -> Place:
        """The engine's thread has no caller on its stack there."""
        in_backward = torch._C._current_autograd_node() is not None
        return Place(None, (), in_engine=False) if in_backward else locate(depth + 1)

    monkeypatch.setattr(operators, "locate", as_on_a_gpu)
    iteration = iteration_of(training)
    (backward,) = ops_named(iteration, "sigmoid_backward")
    assert source_of(backward) == "return x.sigmoid()"
    assert [op.module for op in ops_named(iteration, "mm")] == ["again.0", "again.0", "first"]


def writing_into_a_view() -> object:
    linear, mark = nn.Linear(4, 4).cuda(), nn.Parameter(torch.zeros(4, device="cuda"))

    def step(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = linear(x)  # a view, since x has three dimensions
        hidden[mask] = mark
        hidden = hidden.sigmoid()
        hidden.sum().backward()
        return hidden.detach()

    return step, (torch.rand(2, 3, 4, device="cuda"), torch.ones(2, 3, device="cuda") > 0)


def test_the_backward_of_writing_into_a_view_has_the_line_of_the_writing() -> None:
    backward = [op for op in iteration_of(writing_into_a_view).ops if op.phase == "backward"]
    written = [op for op in backward if op.base_name in ("index_put", "index", "new_empty_strided")]
    assert {"index_put", "index"} <= {op.base_name for op in written}
    assert {source_of(op) for op in written} == {"hidden[mask] = mark"}


def test_what_a_checkpoint_runs_again_has_its_line_and_its_own_module() -> None:
    iteration = iteration_of(training)
    again = [op for op in ops_named(iteration, "relu") if op.phase == "backward"]
    assert [op.module for op in again] == ["again.1"]
    assert "checkpoint(self.again" in source_of(again[0])
    (product,) = [op for op in ops_named(iteration, "addmm") if op.phase == "backward"]
    assert product.module == "again.0"


def test_the_optimizers_operators_have_the_line_of_the_step() -> None:
    updates = [op for op in iteration_of(training).ops if op.phase == "optimizer"]
    assert updates and {source_of(op) for op in updates} == {"optimizer.step()"}


def training_in_a_closure() -> object:
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> object:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    return step, (torch.rand(2, 4, device="cuda"),)


def test_what_an_optimizers_closure_runs_is_forward_and_backward() -> None:
    ops = iteration_of(training_in_a_closure).ops
    phases = [op.phase for op in ops]
    assert {op.phase for op in ops if op.base_name == "addmm"} == {"forward", "backward"}
    assert set(phases[phases.index("optimizer") :]) == {"optimizer"} != set(phases)


def test_a_loss_function_beside_the_model_does_not_lengthen_module_paths() -> None:
    modules = {op.module for op in iteration_of(training).ops}
    assert modules == {"", "first", "again.0", "again.1", "loss_of"}


def test_two_models_are_told_apart_by_their_names() -> None:
    def build() -> object:
        generator, critic = nn.Linear(4, 4).cuda(), nn.Sequential(nn.Linear(4, 1)).cuda()
        return lambda x: critic(generator(x)), (torch.rand(2, 4, device="cuda"),)

    modules = {op.module for op in iteration_of(build).ops}
    assert modules == {"generator", "critic.0"}


def test_models_inside_an_object_are_named_after_it() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.encoder = nn.Linear(4, 4).cuda()
            self.decoder = nn.Linear(4, 4).cuda()

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(self.encoder(x))

    modules = {
        op.module
        for op in iteration_of(lambda: (Trainer().step, (torch.rand(2, 4, device="cuda"),))).ops
    }
    assert modules == {"self.encoder", "self.decoder"}


def test_the_stack_leads_from_the_line_to_the_caller() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    (op,) = iteration_of(lambda: (outer, (torch.rand(3, device="cuda"),))).ops
    assert op.location is not None and op.location.function == "inner"
    assert [place.function for place in op.stack] == ["outer"]
    assert op.location.line == inspect.getsourcelines(inner)[1] + 1


def test_arguments_and_memory_are_recorded() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.view(2, 3).t()
        return torch.cat([y, y * 2.5], dim=1).sum(dim=0, keepdim=True, dtype=torch.float64)

    view, transposed, product, joined, total = iteration_of(
        lambda: (step, (torch.rand(6, device="cuda"),))
    ).ops
    (x,) = view.inputs
    assert (x.shape, x.stride, x.dtype, x.device, x.nbytes) == ((6,), (1,), "float32", "cuda:0", 24)
    (y,) = transposed.outputs
    assert (y.shape, y.stride, y.storage) == ((3, 2), (1, 3), x.storage)
    assert view.is_view and transposed.is_view and not product.is_view
    assert product.args[1] == 2.5
    assert isinstance(joined.args[0], tuple) and joined.args[1] == 1
    assert all(isinstance(each, TensorUse) for each in joined.args[0])
    assert dict(total.kwargs)["dtype"].text == "torch.float64"  # type: ignore[union-attr]


def test_writes_are_the_storages_that_change() -> None:
    def build() -> object:
        model = nn.BatchNorm1d(4).cuda()

        def step(x: torch.Tensor) -> torch.Tensor:
            y = model(x)
            y.mul_(2)
            with torch.no_grad():
                return torch.add(y, 1, out=torch.empty_like(y))

        return SimpleNamespace(step=step, inputs=(torch.rand(2, 4, device="cuda"),), state=[model])

    iteration = iteration_of(build)
    names = {external.storage: external.name for external in iteration.externals}
    (norm,) = ops_named(iteration, "native_batch_norm")
    assert sorted(names[storage].rpartition(".")[2] for storage in norm.writes) == [
        "running_mean",
        "running_var",
    ]
    (product,) = ops_named(iteration, "mul_")
    assert product.writes == (norm.outputs[0].storage,)
    (total,) = [op for op in iteration.ops if op.name == "aten.add.out"]
    assert total.writes == (total.outputs[0].storage,)


def test_storages_from_outside_have_an_origin() -> None:
    def build() -> object:
        weight, kept = torch.rand(3, device="cuda"), {"last": torch.zeros(3, device="cuda")}

        def step(x: torch.Tensor) -> torch.Tensor:
            kept["last"] = x * weight + kept["last"]
            return kept["last"]

        return step, (torch.rand(3, device="cuda"),)

    externals = {e.origin: e for e in iteration_of(build).externals}
    assert externals["input"].name == "inputs[0]"
    assert externals["state"].name == "weight"
    previous = externals["previous-iteration"]
    assert previous.name == "kept.last" and previous.location is not None


def test_events_are_recorded_between_operators() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.cuda.synchronize()
        str(y)
        return y + 1 if torch.cuda.is_current_stream_capturing() else y

    recording = recorded(lambda: (step, (torch.rand(3, device="cuda"),)), iterations=1)
    (iteration,) = recording.captured
    assert [(type(event), event.op_index) for event in iteration.events] == [
        (Sync, 1),
        (TensorRepr, 1),
        (CaptureQuery, 1),
    ]
    assert all(event.location is not None for event in iteration.events)
    assert [op.base_name for op in recording.captured[0].ops] == ["mul", "add"]
    assert [op.base_name for op in recording.eager[0].ops] == ["mul"]


def test_a_replay_inside_the_step_is_named_as_a_limit() -> None:
    def build() -> object:
        model = nn.Linear(4, 4).cuda()
        graphed = torch.cuda.make_graphed_callables(model, (torch.rand(2, 4, device="cuda"),))
        return lambda x: graphed(x) * 2, (torch.rand(2, 4, device="cuda"),)

    recording = recorded(build, iterations=2)
    assert len(recording.limits) == 1
    assert "replays its own CUDA graph" in recording.limits[0]


def test_an_operator_for_the_host_and_the_device_at_once_is_doubted() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(3)

    ops = iteration_of(lambda: (step, (torch.rand(3, device="cuda"),))).ops
    assert ops[-1].fallback is not None and "only if it is 0-d" in ops[-1].fallback


def test_a_sparse_tensor_is_recorded_by_its_values() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x.to_sparse() @ x).sum()

    iteration = iteration_of(lambda: (step, (torch.rand(3, 3, device="cuda"),)))
    assert all(op.is_cuda for op in iteration.ops)
