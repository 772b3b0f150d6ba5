"""What a model's code asks of its inputs, and what another answer is called."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import pytest
import torch

from graphdoctor.graphs.guards.asked_of_tensors import OfInputs, Traits, traits_read


def may_lack(x: Any) -> Any:
    return x.mask if hasattr(x, "mask") else x


def needs(x: Any) -> Any:
    return x.mask


def compares(x: Any, y: Any) -> Any:
    return x if x is y else x + y


def traits_of(function: Callable[..., Any]) -> Traits:
    return traits_read([cast(FunctionType, function)])


def test_an_attribute_is_asked_for_where_an_input_may_lack_it() -> None:
    assert "mask" in traits_of(may_lack).attributes
    assert not traits_of(needs)


def masked() -> torch.Tensor:
    tensor = torch.zeros(2)
    tensor.mask = None  # type: ignore[attr-defined]
    return tensor


WEIGHT = torch.zeros(2)


@pytest.mark.parametrize(
    ("function", "other", "about"),
    [
        (may_lack, torch.ones(2), ""),
        (may_lack, masked(), "the attributes of an input"),
        (needs, masked(), ""),
        (compares, torch.ones(2), ""),
        (compares, WEIGHT, "whether an input is a tensor of the model"),
    ],
)
def test_inputs_that_answer_otherwise_are_told(
    function: Callable[..., Any], other: torch.Tensor, about: str
) -> None:
    captured = OfInputs(traits_of(function), [WEIGHT], [torch.zeros(2)])
    said = f"the model's code asks for {about}, and got another answer at the capture"
    assert captured.difference([other]) == (said if about else "")
