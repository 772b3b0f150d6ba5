"""A model captured for several sizes answers every size as the model does, padded only where that is proved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.captured.sizes import SizeUse
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.values.errors import UsageError
from tests.support.captured_models import Answer, on_device, rand, replayed, why
from tests.support.captured_models import model as model
from tests.support.emulated import device as device


def assert_close(fast: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Both answer the same but for rounding: a larger graph may add in another order."""
    with torch.no_grad():
        answer, expected = fast(*args, **kwargs), model(*args, **kwargs)
    torch.testing.assert_close(answer, expected)
    return answer


@pytest.fixture
def fast(model: Any) -> Any:
    return graphdoctor.capture(model, rand(5, 4), sizes=[2, 8, 4])


class Causal(nn.Module):
    """Each place sees those before it: padding behind it is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.mix(x)).cumsum(dim=1)


class Masked(nn.Module):
    """A mean over what the mask lets through."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = mask.unsqueeze(-1).to(x.dtype)
        return (x * weights).sum(dim=1) / weights.sum(dim=1)


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0, keepdim=True)


class Counting(nn.Module):
    """Its rows do not see each other, but how many there are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) / x.shape[0]


class Total(nn.Module):
    """Nothing of the answer has the size of the batch; zeros do not change it, other rows do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum(dim=0)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Answer:
        y = torch.relu(self.layer(x))
        return Answer(logits=y, hidden=(x * 2, y.t()))


class TestAnswers:
    def test_every_size_up_to_the_largest_is_replayed(self, fast: Any, model: Any) -> None:
        for size in (1, 2, 3, 4, 5, 6, 7, 8, 3, 8, 1):
            assert assert_close(fast, model, rand(size, 4)).shape == (size, 3)
        assert replayed(fast) == 11 and not fast.fallbacks

    def test_a_call_of_a_captured_size_is_eagers_to_the_bit(self, fast: Any, model: Any) -> None:
        given = rand(4, 4)
        with torch.no_grad():
            fast(rand(3, 4))
            assert torch.equal(fast(given), model(given))

    def test_more_than_the_largest_is_eager(self, fast: Any, model: Any) -> None:
        assert_close(fast, model, rand(9, 4))
        assert why(fast) == "the call is larger than the largest captured size, 8"

    def test_an_empty_call_and_one_of_another_make_are_eager(self, fast: Any, model: Any) -> None:
        assert_close(fast, model, rand(0, 4))
        assert_close(fast, model, rand(3, 4), negate=True)
        assert replayed(fast) == 0 and fast.fallbacks.total() == 2

    def test_new_weights_and_changed_numbers_are_seen(self, fast: Any, model: Any) -> None:
        with torch.no_grad():
            model.first.weight.mul_(2)
        assert_close(fast, model, rand(3, 4))
        model.scale = 5.0
        assert_close(fast, model, rand(3, 4))
        assert_close(fast, model, rand(7, 4))  # of a size that was not called before
        assert replayed(fast) == 1 and "model.scale changed" in why(fast)
        model.scale = 2.0
        assert_close(fast, model, rand(7, 4))
        assert replayed(fast) == 2

    def test_rows_of_a_larger_call_are_not_taken_for_padding(self, device: EmulatedDevice) -> None:
        model = on_device(Masked())
        fast = graphdoctor.capture(
            model, rand(2, 6, 3), torch.ones(2, 6, device="cuda"), sizes=[6], dim=1
        )
        for size in (6, 2, 5, 3, 6, 2):
            assert_close(fast, model, rand(2, size, 3), torch.ones(2, size, device="cuda"))
        assert replayed(fast) == 6

    def test_every_tensor_of_a_nested_answer_is_cut(self, device: EmulatedDevice) -> None:
        model = on_device(Named())
        fast = graphdoctor.capture(model, rand(4, 4), sizes=[4])
        given = rand(3, 4)
        with torch.no_grad():
            answer, expected = fast(given), model(given)
        for one, other in zip(
            (answer.logits, *answer.hidden), (expected.logits, *expected.hidden), strict=True
        ):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
        assert (answer.name, replayed(fast)) == ("answer", 1)

    def test_outputs_belong_to_the_caller_unless_asked_otherwise(self, model: Any) -> None:
        fast = graphdoctor.capture(model, rand(4, 4), sizes=[4])
        one = assert_close(fast, model, rand(3, 4))
        kept = one.clone()
        assert_close(fast, model, rand(3, 4))
        assert torch.equal(one, kept)
        lent = graphdoctor.capture(model, rand(4, 4), sizes=[4], clone_outputs=False)
        with torch.no_grad():
            assert lent(rand(3, 4)).data_ptr() == lent(rand(3, 4)).data_ptr()

    def test_the_first_call_may_bring_the_inputs(self, model: Any) -> None:
        fast = graphdoctor.capture(model, sizes=[2, 4])
        for size in (3, 1, 4, 2):
            assert_close(fast, model, rand(size, 4))
        assert fast.plan.sizes == (2, 4) and replayed(fast) == 4


class TestProof:
    def test_a_causal_model_is_padded_behind(self, device: EmulatedDevice) -> None:
        model = on_device(Causal())
        fast = graphdoctor.capture(model, rand(2, 6, 3), sizes=[4, 8], dim=1)
        for size in (1, 3, 4, 5, 7, 8):
            assert_close(fast, model, rand(2, size, 3))
        assert replayed(fast) == 6

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            (Centred, "differs from eager's"),
            (Counting, "differs from eager's"),
            (Total, "depends on the other rows"),
        ],
    )
    def test_rows_that_see_each_other_are_not_padded(
        self, device: EmulatedDevice, kind: type[nn.Module], reason: str
    ) -> None:
        model = on_device(kind())
        fast = graphdoctor.capture(model, rand(6, 3), sizes=[4, 8])
        for size in (3, 4, 7, 8):
            assert_close(fast, model, rand(size, 3))
        assert replayed(fast) == 2 and fast.fallbacks.total() == 2
        assert reason in fast.hits[0].only and reason in fast.explain()

    def test_statistics_of_a_batch_would_count_padding(self, device: EmulatedDevice) -> None:
        model = on_device(nn.BatchNorm1d(3)).train()
        fast = graphdoctor.capture(model, rand(6, 3), sizes=[4], mode="inference")
        assert "writes into its state" in fast.hits[0].only

    def test_a_size_met_first_in_a_call_is_proved_there(self, device: EmulatedDevice) -> None:
        class Odd(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * 3 if x.shape[0] == 6 else torch.relu(x)

        model = on_device(Odd())
        fast = graphdoctor.capture(model, rand(16, 3), sizes=[16])
        for _ in range(2):
            assert_close(fast, model, rand(6, 3))
        assert fast.fallbacks.total() == 2 and "size 6 is not padded to 16" in why(fast)
        assert_close(fast, model, rand(5, 3))
        assert replayed(fast) == 1

    def test_a_size_that_the_model_refuses_is_eager(self, device: EmulatedDevice) -> None:
        class Even(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.relu(x.view(2, -1)).view(x.shape)

        fast = graphdoctor.capture(on_device(Even()), rand(4, 3), sizes=[4])
        assert "the model fails at this size" in fast.hits[0].only
        with pytest.raises(RuntimeError, match="invalid for input of size"), torch.no_grad():
            fast(rand(3, 3))


class TestHits:
    def test_calls_and_padding_are_counted_by_size(self, fast: Any) -> None:
        with torch.no_grad():
            for size in (4, 3, 8, 5, 5):
                fast(rand(size, 4))
        assert fast.hits == (
            SizeUse(2, 0, 0, 0.0),
            SizeUse(4, 1, 1, 1 / 8),
            SizeUse(8, 1, 2, 6 / 24),
        )
        assert "Size 8: 1 call of that size and 2 of less, 25% of whose rows" in fast.explain()
        hits = fast.hits
        fast.release()
        assert fast.hits == hits and fast.plan.how == "eager"

    def test_without_sizes_there_are_none(self, model: Any) -> None:
        assert graphdoctor.capture(model, rand(5, 4)).hits == ()


class TestAsked:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"sizes": []}, "at least one"),
            ({"sizes": [0, 4]}, "from 1 on"),
            ({"sizes": [2.5]}, "whole numbers"),
            ({"sizes": [2], "max_graphs": 2}, "leave max_graphs out"),
            ({"sizes": [2], "mode": "training"}, "for inference"),
            ({"sizes": [2], "dim": 5}, "no tensor with a dimension 5"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, model: Any, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(UsageError, match=message):
            graphdoctor.capture(model, rand(5, 4), **options)

    def test_a_model_that_cannot_be_captured_says_so(self, device: EmulatedDevice) -> None:
        class Waits(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * 2 if x.sum().item() > 0 else x

        model = on_device(Waits())
        fast = graphdoctor.capture(model, rand(5, 4), sizes=[2, 8])
        assert fast.plan.how == "eager" and "No graph of size 8: GD1" in fast.explain()
        assert_close(fast, model, rand(3, 4))

    def test_a_size_that_cannot_be_captured_leaves_the_others(self, device: EmulatedDevice) -> None:
        class Small(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.relu(x) + (float(x.sum()) if x.shape[0] == 2 else 0.0)

        model = on_device(Small())
        fast = graphdoctor.capture(model, rand(5, 4), sizes=[2, 4, 8])
        assert fast.plan.sizes == (4, 8) and "No graph of size 2" in fast.explain()
        assert_close(fast, model, rand(4, 4))
        assert_close(fast, model, rand(7, 4))
        assert replayed(fast) == 2


@pytest.mark.gpu
def test_graphs_of_several_sizes_share_one_pool() -> None:
    """Together they reserve about what the largest needs alone."""

    def reserved(sizes: list[int]) -> int:
        torch.manual_seed(1)
        layers = [nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)]
        model = nn.Sequential(*layers).cuda().eval()
        given = torch.randn(4096, 1024, device="cuda")
        with torch.no_grad():
            model(given)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        fast = graphdoctor.capture(model, given, sizes=sizes)
        for size in (*sizes, 3000):
            fresh = torch.randn(size, 1024, device="cuda")
            with torch.no_grad():
                torch.testing.assert_close(fast(fresh), model(fresh), rtol=1e-3, atol=1e-3)
        assert not fast.fallbacks
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        took = torch.cuda.memory_reserved() - before
        fast.release()
        return took

    one, four = reserved([4096]), reserved([4096, 3584, 3072, 2560])
    # Static inputs and outputs are each graph's own: 4096 of 13312 rows of them are one's.
    own = sum((3584, 3072, 2560)) * 1024 * 4 * 2
    assert four < one + own + 0.5 * one
