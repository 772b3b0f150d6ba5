"""Models cut by Dynamo and FX compute what eager computes, and the plan is foreseen from a recording."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import pytest
import torch

from graphdoctor.estimate import Calls
from graphdoctor.graphs.segments import Segments
from graphdoctor.graphs.segments.backend import settings
from graphdoctor.graphs.segments.split import Break, GraphPlan, SegmentsPlan
from graphdoctor.strategies.compilers.compiler import compiled_models
from graphdoctor.strategies.segments import Segments as SegmentsStrategy
from graphdoctor.strategies.segments import _calls
from graphdoctor.strategies.strategy import CannotBuild, Captured, Known
from graphdoctor.strategies.whole import BuiltStep
from tests.support.builders import iteration
from tests.support.plain_session import session_of
from tests.support.trying import tried


def long(x: torch.Tensor, scale: float = 0.5) -> torch.Tensor:
    for _ in range(6):
        x = torch.tanh(x) * scale + 1
    return x


class Branching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.second = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = long(self.norm(self.first(x)))
        if y.sum().item() > 0:
            return long(self.second(y))
        return y - 1


def test_dynamo_finds_the_graphs_and_python_stays_between_them() -> None:
    torch.manual_seed(0)
    model, twin = Branching(), Branching()
    twin.load_state_dict(model.state_dict())
    backend = Segments(capture=False, where=lambda tensor: "cuda:0")
    with settings():
        compiled = torch.compile(model, backend=backend)
        for sign in (5.0, -5.0, 5.0, -5.0):
            x = torch.randn(4, 8) + sign
            left, right = compiled(x), twin(x)
            assert torch.equal(left, right)
            left.sum().backward()
            right.sum().backward()
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert left.grad is None if right.grad is None else torch.equal(left.grad, right.grad)
    assert all(map(torch.equal, model.buffers(), twin.buffers()))
    (broken,) = backend.plan.breaks
    assert "item" in broken.reason
    assert broken.location is not None and broken.location.function == "forward"
    first = backend.plan.graphs[0].parts[0].first
    assert first is not None and first.file == __file__ and first.function == "forward"
    names = [graph.name for graph in backend.plan.graphs]
    assert {"forward graph 1", "forward graph 2", "backward graph 1"} <= set(names)
    captured = sum(graph.captured_launches for graph in backend.plan.graphs)
    assert 0.5 < captured / sum(graph.launches for graph in backend.plan.graphs) <= 1.0
    torch._dynamo.reset()


def test_dropout_of_what_the_backward_keeps_draws_once_a_step() -> None:
    """Without Dynamo, AOTAutograd's backward graph draws again, and nobody reads it."""

    def trained(*, compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Dropout(0.5))
        backend = Segments(capture=False, where=lambda tensor: "cuda:0")
        called = torch.compile(model, backend=backend) if compiled else model
        with settings():
            for _ in range(2):
                called(torch.randn(4, 8)).square().sum().backward()
        return [*(parameter.grad for parameter in model.parameters()), torch.get_rng_state()]  # type: ignore[list-item]

    assert all(map(torch.equal, trained(compiled=True), trained(compiled=False)))
    torch._dynamo.reset()


def test_a_norm_is_planned_by_the_strides_of_its_input() -> None:
    """Its kernels are counted by how its input lies, which Dynamo's graph tells as a recording does."""
    backend = Segments(capture=False, where=lambda tensor: "cuda:0")
    norm = torch.nn.LayerNorm(4)

    def turned(x: torch.Tensor) -> torch.Tensor:
        return norm(norm(x).t())

    with settings(), torch.no_grad():
        torch.compile(turned, backend=backend, dynamic=False)(torch.randn(4, 4))
    (graph,) = backend.plan.graphs
    assert graph.launches == 3  # of the second its input is copied first


def test_settings_of_dynamo_are_put_back() -> None:
    import torch._dynamo.config as config

    with config.patch(capture_scalar_outputs=True):
        with settings():
            assert not config.capture_scalar_outputs
        assert config.capture_scalar_outputs


def test_a_step_of_the_cpu_has_nothing_to_capture() -> None:
    model = Branching()

    def step(data: torch.Tensor) -> torch.Tensor:
        return model(torch.cat([data, data], dim=1))

    session, known = session_of(step)
    with pytest.raises(CannotBuild, match=r"nothing could be captured: .* 0 of them captured"):
        SegmentsStrategy().build(session, known)
    assert "_compiled_call_impl" not in vars(model)


def test_runs_of_models_that_hold_graphs_start_from_the_state_of_the_session() -> None:
    session, _ = session_of(long)
    built = compiled_models(session, lambda function: function, whole=True)
    built.in_graphs = Captured((), Calls())
    step = BuiltStep(built, session)
    step.load(session.inputs(0))
    step.replay()
    assert step.start is session.start
    assert torch.equal(step.footprint.tensors["output"], long(session.inputs(0).args[0]))


@pytest.mark.parametrize(
    ("mode", "calls"),
    [
        # 2 graphs and a break; 6 parameters and 3 buffers of 4 modules
        ("inference", Calls(segment=3, segment_tensor=9, segment_module=4)),
        ("training", Calls(trained_segment=3, segment_parameter=6)),
    ],
)
def test_what_dynamos_code_looks_after_is_counted(
    mode: Literal["inference", "training"], calls: Calls
) -> None:
    model = Branching()
    known = Known(
        mode=mode, roots={"model": model}, findings=(), safe_modules=(), iteration=iteration([])
    )
    plan = SegmentsPlan(
        (GraphPlan("forward graph 1", ()), GraphPlan("forward graph 2", ())), (Break("item", None),)
    )
    assert _calls(plan, known) == calls


def test_nothing_is_traced_on_the_emulated_device() -> None:
    with tried(branching) as attempt, pytest.raises(CannotBuild, match="takes a real GPU"):
        SegmentsStrategy().build(attempt.session, attempt.known)


@pytest.mark.gpu
def test_on_a_gpu_a_training_step_in_segments_computes_what_eager_computes() -> None:
    torch.manual_seed(0)
    model = Branching().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(data: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(data.cuda().repeat(1, 2)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    session, known = session_of(step)

    def run(call: Callable[..., Any]) -> list[torch.Tensor]:
        session.start.restore()
        losses = [call(session.inputs(index)) for index in (0, 1, 2, 0, 1, 2)]
        return [*losses, *(tensor.detach().clone() for tensor in model.state_dict().values())]

    expected = run(session.call)
    session.start.restore()
    built = SegmentsStrategy().build(session, known)
    try:
        assert "captured" in built.note
        for wanted, found in zip(expected, run(BuiltStep(built, session).call), strict=True):
            torch.testing.assert_close(found, wanted)
    finally:
        built.release()
        session.start.restore()


@lru_cache(maxsize=1)
def positions(dtype: torch.dtype) -> torch.Tensor:
    """Another dtype drops the table that was there."""
    return torch.arange(8.0, device="cuda").to(dtype)


class Cached(torch.nn.Module):
    """Takes the table in the graph, or from Python between two graphs."""

    def __init__(self, table: Callable[[torch.dtype], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.table = torch.nn.Linear(8, 8), table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.table(x.dtype)
        for _ in range(4):
            x = torch.tanh(self.layer(x) + table) * 0.5
        return x


@pytest.mark.gpu
@pytest.mark.parametrize("traced", [True, False])
def test_on_a_gpu_no_segment_reads_a_table_that_a_cache_has_dropped(traced: bool) -> None:
    table = positions if traced else torch._dynamo.disable(positions)
    model, x = Cached(table).cuda(), torch.randn(4, 8, device="cuda")
    backend = Segments()
    with settings(), torch.no_grad():
        compiled = torch.compile(model, backend=backend)
        for _ in range(3):
            compiled(x)
        assert backend.is_captured
        expected = model(x)
        for _ in range(3):
            positions(torch.bfloat16)  # frees the table
            spoilt = [torch.full((8,), float("nan"), device="cuda") for _ in range(64)]
            torch.testing.assert_close(compiled(x), expected)
            del spoilt
    backend.release()
    torch._dynamo.reset()


def branching() -> object:
    torch.manual_seed(0)
    return Branching().cuda().eval(), (torch.randn(4, 8, device="cuda") + 5,)


def test_the_plan_is_foreseen_from_a_recording() -> None:
    with tried(branching) as attempt:
        strategy, known = SegmentsStrategy(), attempt.known
        assert strategy.reason_against(known) == ""
        lines = strategy.plan(known).splitlines()
        assert "1 graph break" in lines[0]
        assert lines[1] == "forward graph 1:" and "one CUDA graph" in lines[2]
        assert "aten._local_scalar_dense.default" in lines[-1]
        regions = strategy.regions(known)
        ops = known.iteration.ops
        inside = [ops[index].name for region in regions or () for index in region]
        assert "aten.tanh.default" in inside and "aten._local_scalar_dense.default" not in inside
        assert "model = torch.compile(model, backend=graphdoctor.Segments())" in strategy.code(
            known
        )


class Selecting(torch.nn.Module):
    """Works on what nonzero() finds, and then on something of its own size again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = long(x)
        rows = (y.sum(1) > 1).nonzero().squeeze(1)
        y = y.index_add(0, rows, long(y[rows]))
        return long(y)


def selecting() -> object:
    return Selecting().cuda(), (torch.randn(4, 8, device="cuda"),)


def test_sizes_that_depend_on_values_stay_out_of_the_plan() -> None:
    with tried(selecting) as attempt:
        strategy, known = SegmentsStrategy(), attempt.known
        ops = known.iteration.ops
        inside = [index for region in strategy.regions(known) or () for index in region]
        tanhs = [op.index for op in ops if op.name == "aten.tanh.default"]
        assert [index in inside for index in tanhs] == [True] * 6 + [False] * 6 + [True] * 6
        assert "works on a size that depends on values" in strategy.plan(known)
