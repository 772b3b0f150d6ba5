"""What is left of earlier steps is found where a backward pass goes on into it, and named."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.earlier_graphs import (
    LEGACY,
    EarlierGraphs,
    mark_held_accumulations,
)
from graphdoctor.values.host_events import EarlierGraph, HostEvent


class Told:
    """A device that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[HostEvent] = []

    def event(self, event: HostEvent) -> None:
        self.events.append(event)


def marks_of(model: torch.nn.Module) -> list[Any]:
    """The marks on the accumulations of its parameters, as far as they are alive."""
    nodes = [p.view_as(p).grad_fn.next_functions[0][0] for p in model.parameters()]
    return [mark for node in nodes for mark in node.metadata.values() if mark]


def test_a_variable_that_the_step_reaches_is_named_with_its_line() -> None:
    model = torch.nn.Linear(4, 1)
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    mark_held_accumulations({"model": model, "loss": loss}, ["`loss` (train.py:3)"])
    assert set(marks_of(model)) == {("`loss` (train.py:3)",)}


def test_a_loss_that_is_still_there_holds_the_accumulations_of_its_parameters_only() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    mark_held_accumulations({"model": model})
    assert marks_of(model) == []
    loss = model[1](torch.ones(2, 4)).sum()
    loss.backward()
    mark_held_accumulations({"model": model}, ["`loss` (line 3)"])
    assert marks_of(model) == [("`loss` (line 3)",)] * 2
    del loss
    assert marks_of(model) == []


def test_a_tensor_of_the_roots_that_holds_them_is_named_by_its_path() -> None:
    model = torch.nn.Linear(4, 1)
    kept = model(torch.ones(2, 4))
    mark_held_accumulations({"model": model, "kept": kept})
    assert marks_of(model) == [("`kept`",)] * 2


def test_what_was_detached_holds_nothing() -> None:
    model = torch.nn.Linear(4, 1)
    loss = model(torch.ones(2, 4)).sum().detach()
    mark_held_accumulations({"model": model})
    assert marks_of(model) == [] and not loss.requires_grad


def test_a_distributed_model_holds_nodes_of_its_own() -> None:
    class DistributedDataParallel(torch.nn.Linear):
        pass

    model = DistributedDataParallel(4, 1)
    output = model(torch.ones(2, 4))
    mark_held_accumulations({"model": model})
    assert marks_of(model) == [] and output.requires_grad


def test_nor_is_anything_held_in_the_way_of_a_module_inside_one() -> None:
    class DistributedDataParallel(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

    model = torch.nn.Linear(4, 1)
    around = DistributedDataParallel(model)
    output = model(torch.ones(2, 4))
    mark_held_accumulations({"model": model})
    assert marks_of(model) == [] and output.requires_grad
    del around
    mark_held_accumulations({"model": model})
    assert len(marks_of(model)) == 2


def test_the_backward_pass_of_a_step_tells_once_of_what_is_held() -> None:
    with EmulatedDevice() as device:
        model = torch.nn.Linear(4, 1, device="cuda")
        data = torch.ones(2, 4, device="cuda")
        held = model(data).sum()
        held.backward()
        mark_held_accumulations({"model": model}, ["`held` (line 1)"])
        told = Told()
        with device.observed_by(EarlierGraphs(told)):
            model(data).sum().backward()
        assert told.events == [
            EarlierGraph(
                "a gradient's accumulation, kept alive by `held` (line 1)",
                refusal=LEGACY,
                kept_by=("`held` (line 1)",),
            )
        ]


@pytest.mark.parametrize("is_kept", [False, True])
def test_each_thread_numbers_the_nodes_that_it_makes(is_kept: bool) -> None:
    """As the engine's thread of a GPU does with a gradient penalty."""
    with EmulatedDevice() as device:
        point = torch.ones(4, device="cuda", requires_grad=True)
        kept = (point * point).sum()
        told = Told()
        earlier = EarlierGraphs(told)

        def penalty() -> None:
            with device.observed_by(earlier):
                value = kept if is_kept else (point * point * point).sum()
                (gradient,) = torch.autograd.grad(value, point, create_graph=True)
                gradient.sum().backward()

        thread = threading.Thread(target=penalty)
        thread.start()
        thread.join()
        assert [event.name for event in told.events] == ["SumBackward0"] * is_kept


takes_stream_of_capture = pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "set_override_stale_capture_stream"),
    reason="this torch always keeps to the stream of that time",
)


def mark_where_the_capture_s_stream_is_taken(model: torch.nn.Module) -> None:
    torch.autograd.graph.set_override_stale_capture_stream(True)
    try:
        mark_held_accumulations({"model": model})
    finally:
        torch.autograd.graph.set_override_stale_capture_stream(False)


@takes_stream_of_capture
def test_nothing_is_in_the_way_where_torch_was_told_to_take_the_capture_s_stream() -> None:
    model = torch.nn.Linear(4, 1)
    output = model(torch.ones(2, 4))
    mark_where_the_capture_s_stream_is_taken(model)
    assert marks_of(model) == [] and output.requires_grad


class Lying(torch.Tensor):
    """A subclass whose functions give something else."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return ()


def test_a_parameter_of_any_class_can_be_looked_at() -> None:
    parameter = torch.ones(2).as_subclass(Lying).requires_grad_()
    mark_held_accumulations({"parameter": parameter})


def test_a_class_of_the_user_s_that_is_a_distributed_model_holds_nodes_of_its_own() -> None:
    class DistributedDataParallel(torch.nn.Linear):
        pass

    class Mine(DistributedDataParallel):
        pass

    model = Mine(4, 1)
    output = model(torch.ones(2, 4))
    weight = model.weight
    for roots in ({"model": model}, {"weight": weight}):
        mark_held_accumulations(roots)
        assert marks_of(model) == [] and output.requires_grad


def test_what_only_a_cycle_that_nobody_reaches_holds_is_not_held() -> None:
    model = torch.nn.Linear(4, 1)
    cycle: list[Any] = [model(torch.ones(2, 4))]
    cycle.append(cycle)
    del cycle
    mark_held_accumulations({"model": model})
    assert marks_of(model) == []


@takes_stream_of_capture
def test_the_mark_of_an_earlier_analysis_is_taken_off() -> None:
    model = torch.nn.Linear(4, 1)
    output = model(torch.ones(2, 4))
    mark_held_accumulations({"model": model})
    assert len(marks_of(model)) == 2 and output.requires_grad
    mark_where_the_capture_s_stream_is_taken(model)
    assert marks_of(model) == []
