"""Steps that take another path while they are captured: what is compared all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from graphdoctor.proof.verify import _DrawLog
from graphdoctor.values.captures import ON_PATH_OF_CAPTURE
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
    # The first of the replays, of which each leads farther away.
    assert "differs from eager's by up to 0.01, more than rounding" in result.reason


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


def draws(*calls: Callable[[], object]) -> tuple[object, ...]:
    with _DrawLog() as log:
        for call in calls:
            call()
        drawn = log.taken()
        assert log.taken() == ()
    return drawn


def test_draws_are_equal_that_draw_the_same_numbers() -> None:
    data = torch.full((4,), 0.5)
    rand: list[Callable[[], object]] = [
        lambda: torch.rand(4),
        lambda: torch.rand(5),
        lambda: torch.rand(4, dtype=torch.float64),
        lambda: torch.bernoulli(data),
        lambda: torch.bernoulli(data[:2]),
        lambda: torch.bernoulli(data, 0.25),
        lambda: torch.bernoulli(data, 0.5),
        lambda: torch.rand_like(data),
        lambda: torch.randint(3, (4,)),
    ]
    found = [draws(call) for call in rand]
    assert found == [draws(call) for call in rand]
    assert all(len(each) == 1 for each in found)
    assert len(set(found)) == len(found)
    assert draws(rand[0], rand[3]) == (*found[0], *found[3]) != draws(rand[3], rand[0])


def test_a_generator_of_one_s_own_is_told_from_none_and_from_no_other() -> None:
    """Where each of them stands after the step is what is compared of generators."""
    own: list[Callable[[], object]] = [
        lambda: torch.rand(4, generator=torch.Generator()) for _ in range(2)
    ]
    assert draws(own[0]) == draws(own[1]) != draws(lambda: torch.rand(4))


def test_what_draws_nothing_is_no_draw() -> None:
    data = torch.ones(4)
    assert draws(data.relu, lambda: data + 1, lambda: nn.functional.dropout(data, 0.0)) == ()
    assert draws(lambda: nn.functional.dropout(data, 0.5, training=False)) == ()
    assert len(draws(lambda: nn.functional.dropout(data, 0.5))) == 1


def attention(data: torch.Tensor, mask: torch.Tensor | None, p: float = 0.5) -> torch.Tensor:
    """Dropout by one of two kernels: the quick one takes no mask, and draws in an order of its own."""
    if mask is None and torch.backends.cuda.mem_efficient_sdp_enabled():
        torch.rand_like(data)
        return nn.functional.dropout(data, p)
    return nn.functional.dropout(data if mask is None else data * mask, p)


def ones_while_captured(data: torch.Tensor) -> torch.Tensor | None:
    return torch.ones_like(data) if torch.cuda.is_current_stream_capturing() else None


def test_another_kernel_of_attention_is_held_against_eager_on_both_paths(exact: bool) -> None:
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(data: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = attention(data * weight, ones_while_captured(data)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    result = verified(target_of(step, (64, 64)), exact)

    assert (result.status, result.path) == ("verified", ON_PATH_OF_CAPTURE), result
    assert "with attention by one kernel" in result.reason


def test_another_kernel_does_not_hide_that_something_else_is_computed(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        mask = ones_while_captured(data)
        return attention(data if mask is None else data * 2.0, mask)

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "wrong"
    assert "something else while it is captured" in result.differences[0].detail


def test_another_kernel_does_not_hide_a_mask_that_hides_something(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        mask = ones_while_captured(data)
        if mask is not None:
            mask[:, 7] = 0.0
        return attention(data, mask)

    assert verified(target_of(step, (64, 64)), exact).status == "wrong"


def test_another_kernel_does_not_hide_that_more_is_dropped(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        mask = ones_while_captured(data)
        return attention(data, mask, 0.5 if mask is None else 0.1)

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "not-verified"
    assert "which draws other random numbers" in result.reason


def test_another_kernel_does_not_hide_state_that_is_led_elsewhere(exact: bool) -> None:
    total = torch.ones(64, 64, device="cuda")

    def step(data: torch.Tensor) -> torch.Tensor:
        mask = ones_while_captured(data)
        total.add_(attention(data, mask), alpha=1.0 if mask is None else 2.0)
        return data * 2.0

    assert verified(target_of(step, (64, 64)), exact).status == "not-verified"


def test_a_step_that_does_not_run_with_the_kernel_for_both_stays_not_verified(exact: bool) -> None:
    def step(data: torch.Tensor) -> torch.Tensor:
        if not torch.backends.cuda.mem_efficient_sdp_enabled():
            raise ValueError("too much memory")
        return attention(data, ones_while_captured(data))

    result = verified(target_of(step, (64, 64)), exact)

    assert result.status == "not-verified"
    assert "which draws other random numbers" in result.reason


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_a_gpu_with_a_mask_of_one_number_trains_as_in_eager(
    dtype: torch.dtype,
) -> None:
    model = nn.Linear(32, 96, device="cuda", dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(data: torch.Tensor) -> torch.Tensor:
        mask = None
        if torch.cuda.is_current_stream_capturing():
            mask = torch.ones((), dtype=torch.bool, device="cuda").expand(2, 1, 16, 16)
        optimizer.zero_grad()
        parts = model(data.to(dtype)).unflatten(-1, (3, 2, 16)).movedim(2, 0).transpose(2, 3)
        seen = nn.functional.scaled_dot_product_attention(
            *parts.unbind(), attn_mask=mask, dropout_p=0.1
        )
        loss = seen.float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    result = verified(target_of(step, (2, 16, 32)), False)

    assert (result.status, result.path) == ("verified", ON_PATH_OF_CAPTURE), result
