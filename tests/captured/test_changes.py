"""A model or a mode of torch that changed since the capture is noticed: that call is eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.device.emulated import EmulatedDevice
from tests.support.captured_models import (
    Scaled,
    assert_equal,
    on_device,
    rand,
    replayed,
    why,
)
from tests.support.captured_models import fast as fast
from tests.support.captured_models import model as model
from tests.support.emulated import device as device


def test_a_graph_made_later_answers_no_call_that_wants_gradients_of_what_is_new(
    device: EmulatedDevice,
) -> None:
    model = on_device(Scaled()).requires_grad_(False)
    fast: Any = graphdoctor.capture(model, rand(5, 4), max_graphs=2)
    model.second = nn.Linear(6, 3).cuda()
    for rows in (7, 7):
        assert fast(rand(rows, 4)).requires_grad
        with torch.no_grad():
            assert not fast(rand(rows, 4)).requires_grad


class TestState:
    def test_values_of_weights_are_seen(self, fast: Any, model: Any) -> None:
        with torch.no_grad():
            model.first.weight.add_(1)
        assert_equal(fast, model, rand(5, 4))
        model.load_state_dict(on_device(Scaled()).state_dict())
        assert_equal(fast, model, rand(5, 4))
        torch.optim.SGD(fast.parameters(), lr=0.1).step()
        model.shift.fill_(7)
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 3

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("model.first.weight = nn.Parameter(rand(6, 4))", "first"),
            ("model.first.weight.data = rand(6, 4)", "model.first.weight is at another address"),
            ("model.scale = 3.0", "model.scale changed from 2.0 to 3.0"),
            ("model.scale = 2", "model.scale changed from 2.0 to 2"),
            ("model.sizes.append(4)", "model.sizes changed"),
            ("model.settings['power'] = 2.0", "model.settings.power changed from 1.0 to 2.0"),
            ("model.train()", "model.training changed from False to True"),
            ("model.first.register_forward_hook(lambda m, i, o: o * 2)", "hook was registered"),
            ("model.register_forward_pre_hook(lambda m, i: (i[0] * 2,))", "hook was registered"),
            ("model.first.forward = lambda x: x @ torch.ones(4, 6, device='cuda')", "forward"),
        ],
    )
    def test_a_change_is_eager_and_named(
        self, fast: Any, model: Any, change: str, message: str
    ) -> None:
        assert_equal(fast, model, rand(5, 4))
        exec(change, {"model": model, "nn": nn, "rand": rand, "torch": torch})
        for _ in range(3):
            assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 1 and message in why(fast)

    def test_the_graph_is_used_again_when_a_change_is_taken_back(
        self, fast: Any, model: Any
    ) -> None:
        model.train()
        assert_equal(fast, model, rand(5, 4))
        model.eval()
        assert_equal(fast, model, rand(5, 4))
        handle = model.register_forward_hook(lambda m, i, o: o + 1)
        assert_equal(fast, model, rand(5, 4))
        handle.remove()
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 2

    def test_an_equal_value_put_in_anew_is_no_change(self, fast: Any, model: Any) -> None:
        model.scale = float("2.0")
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 1

    def test_a_tensor_of_one_element_is_known_by_identity(self, device: EmulatedDevice) -> None:
        class One(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = torch.full((), 2.0, device="cuda")

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.factor

        model = One()
        fast = graphdoctor.capture(model, rand(3))
        model.factor = torch.full((), 2.0, device="cuda")
        model.factor.fill_(5)
        assert_equal(fast, model, rand(3))
        model.factor = torch.full((), 2.0, device="cuda")
        assert_equal(fast, model, rand(3))
        model.factor.fill_(6)
        assert_equal(fast, model, rand(3))
        assert replayed(fast) == 0


class TestModes:
    def test_wanted_gradients_are_eager(self, fast: Any, model: Any) -> None:
        fast(rand(5, 4)).sum().backward()
        assert model.first.weight.grad is not None and "gradients are wanted" in why(fast)

    def test_a_frozen_model_is_replayed_with_gradients_enabled(self, model: Any) -> None:
        model.requires_grad_(False)
        fast = graphdoctor.capture(model, rand(5, 4))
        given = rand(5, 4)
        assert torch.equal(fast(given), model(given)) and replayed(fast) == 1
        assert fast(given.requires_grad_()).requires_grad
        model.first.weight.requires_grad_()
        assert fast(given.detach()).requires_grad and replayed(fast) == 1

    def test_autocast_is_eager(self, fast: Any, model: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 0 and "autocast changed from False to True" in why(fast)

    def test_captured_under_autocast(self, model: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            fast = graphdoctor.capture(model, rand(5, 4))
            assert_equal(fast, model, rand(5, 4))
            with torch.no_grad():
                model.first.weight.mul_(2)
            torch.clear_autocast_cache()
            assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 2
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 2

    @pytest.mark.parametrize(
        ("setting", "back"),
        [
            (lambda: torch.set_default_dtype(torch.float64),) * 1
            + (lambda: torch.set_default_dtype(torch.float32),),
            (
                lambda: torch.use_deterministic_algorithms(True),
                lambda: torch.use_deterministic_algorithms(False),
            ),
        ],
    )
    def test_switches_of_torch(self, fast: Any, model: Any, setting: Any, back: Any) -> None:
        given = rand(5, 4)
        setting()
        try:
            assert_equal(fast, model, given)
        finally:
            back()
        assert replayed(fast) == 0
        assert_equal(fast, model, given)
        assert replayed(fast) == 1

    def test_a_global_hook(self, fast: Any, model: Any) -> None:
        handle = nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 2)
        try:
            assert_equal(fast, model, rand(5, 4))
        finally:
            handle.remove()
        assert replayed(fast) == 0 and "hook for all modules" in why(fast)

    def test_inside_vmap_it_is_eager(self, fast: Any, model: Any) -> None:
        with torch.no_grad():
            torch.vmap(fast)(rand(2, 5, 4))
        assert replayed(fast) == 0

    def test_inside_a_capture_of_the_callers(self, fast: Any, model: Any) -> None:
        static = rand(5, 4)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            answer = fast(static)
        static.copy_(rand(5, 4))
        graph.replay()
        assert torch.equal(answer, model(static)) and replayed(fast) == 0

    def test_on_another_stream(self, fast: Any, model: Any) -> None:
        side: Any = torch.cuda.Stream()
        with torch.cuda.stream(side):
            assert_equal(fast, model, rand(5, 4))
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 2
