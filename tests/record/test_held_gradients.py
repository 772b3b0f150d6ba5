"""Outputs of earlier steps that a program still holds are found, and nothing is left on what was looked at."""

from __future__ import annotations

import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.record.held_gradients import held_gradients


def test_a_loss_that_is_still_there_holds_the_gradients_of_its_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    roots = {"model": model}
    assert held_gradients(roots) == ()
    loss = model[1](torch.ones(2, 4)).sum()
    loss.backward()
    (said,) = held_gradients(roots)
    assert "the gradients of 2 parameters (model.1.weight ...)" in said
    assert held_gradients(roots) == (said,)
    del loss
    assert held_gradients(roots) == ()


def test_what_was_detached_holds_nothing() -> None:
    model = torch.nn.Linear(4, 1)
    loss = model(torch.ones(2, 4)).sum().detach()
    assert held_gradients({"model": model}) == ()
    assert not loss.requires_grad


def test_it_is_found_on_the_emulated_device_and_leaves_no_mark() -> None:
    with EmulatedDevice():
        model = torch.nn.Linear(4, 1, device="cuda")
        output = model(torch.ones(2, 4, device="cuda"))
        assert len(held_gradients({"model": model})) == 1
    node = output.grad_fn.next_functions[0][0]
    assert not node.metadata
    assert model.weight.grad is None
    assert not model.weight._backward_hooks


def test_a_distributed_model_holds_nodes_of_its_own() -> None:
    class DistributedDataParallel(torch.nn.Linear):
        pass

    model = DistributedDataParallel(4, 1)
    output = model(torch.ones(2, 4))
    assert held_gradients({"model": model}) == ()
    assert output.requires_grad
