"""Which accumulations of gradients outlive a look at them; parameters without any are passed over."""

from __future__ import annotations

import torch

from graphdoctor.target.state.accumulations import held, mark_all, marked
from tests.support.opaque import Opaque


def test_a_mark_is_gone_with_what_held_the_node() -> None:
    roots = {"model": torch.nn.Linear(2, 1)}
    mark_all(roots)
    assert marked(roots) == []
    loss = roots["model"](torch.ones(1, 2)).sum()
    mark_all(roots)
    assert len(marked(roots)) == 2
    mark_all(roots)
    del loss
    assert marked(roots) == []


def test_parameters_that_cannot_be_viewed_are_passed_over() -> None:
    sparse = torch.nn.Parameter(torch.eye(2).to_sparse())
    refusing = torch.nn.Parameter(Opaque(torch.eye(2)))
    roots = {"lazy": torch.nn.LazyLinear(2), "sparse": sparse, "opaque": refusing}
    assert held(roots, "look") == []


def test_what_a_tensor_holds_outlives_a_look() -> None:
    roots = {"model": torch.nn.Linear(2, 1)}
    assert held(roots, "look") == []
    loss = roots["model"](torch.ones(1, 2)).sum()
    assert {node.variable.numel() for node in held(roots, "look")} == {2, 1}
    del loss
    assert held(roots, "look") == []
