"""Steps that take another path while they are captured: what is compared all the same."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.whole_steps import target_of, verified


def test_another_path_that_only_rounds_differently_is_verified_and_told(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            return (data / 3.0).sum(0)
        return data.sum(0) / 3.0

    result = verified(target_of(step, (1000, 8)), exact)

    assert result.status == "verified", result
    if exact:
        assert "another path while it is captured" in result.reason


def test_another_path_that_computes_something_else_is_wrong(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        return data * 2.0 if torch.cuda.is_current_stream_capturing() else data * 3.0

    result = verified(target_of(step, (4, 8)), exact)

    assert result.status == "wrong"
    assert "something else while it is captured" in result.differences[0].detail


def test_another_path_that_leads_the_state_elsewhere_is_not_verified(exact: bool) -> None:
    total = torch.ones(8, device="cuda")

    def step(data: torch.Tensor) -> torch.Tensor:
        total.mul_(1.01 if torch.cuda.is_current_stream_capturing() else 1.0)
        return data * 2.0

    result = verified(target_of(step, (4, 8)), exact)

    assert result.status == "not-verified"
    assert "more than rounding" in result.reason


def dropped(data: torch.Tensor) -> torch.Tensor:
    """Dropout, in one of two ways."""
    if torch.cuda.is_current_stream_capturing():
        torch.rand_like(data)  # what follows draws other numbers, on a real GPU too
        return data * torch.bernoulli(torch.full_like(data, 0.5)) / 0.5
    return nn.functional.dropout(data, 0.5)


def test_another_path_that_draws_other_random_numbers_is_not_verified(exact: bool) -> None:
    result = verified(target_of(dropped, (64, 64)), exact)

    assert result.status == "not-verified"
    assert "which draws other random numbers" in result.reason
    assert not result.differences


def test_the_same_draws_in_another_order_are_other_random_numbers(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            noise = torch.rand_like(data)
            return data * torch.bernoulli(torch.full_like(data, 0.5)) + noise
        return data * torch.bernoulli(torch.full_like(data, 0.5)) + torch.rand_like(data)

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "not-verified"
    assert "which draws other random numbers" in result.reason


def test_another_path_that_draws_the_same_random_numbers_is_compared(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        factor = 2.0 if torch.cuda.is_current_stream_capturing() else 3.0
        return factor * nn.functional.dropout(data, 0.5)

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "wrong"
    assert "something else while it is captured" in result.differences[0].detail


def test_what_no_random_number_reaches_is_compared_all_the_same(exact: bool) -> None:
    def step(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return dropped(data), data * (2.0 if torch.cuda.is_current_stream_capturing() else 3.0)

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "wrong"
    assert {each.tensor for each in result.differences} == {"output[1]"}


@torch.library.custom_op("graphdoctor_tests::noise_beside", mutates_args=())
def noise_beside(data: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(data)


def test_what_an_operator_without_a_tag_draws_shows_in_the_generator(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            noise_beside(data)
        return nn.functional.dropout(data, 0.5)

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "not-verified"
    assert "which draws other random numbers" in result.reason
