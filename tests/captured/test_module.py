"""The captured module is the model but for its calls, and says what it cannot capture."""

from __future__ import annotations

import copy
import gc
import importlib.util
import io
import subprocess
import sys
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import graphdoctor
from graphdoctor.captured.module import behind
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.values.errors import UsageError, UserCodeError
from tests.support.captured_models import (
    Scaled,
    assert_equal,
    on_device,
    rand,
    replayed,
)
from tests.support.captured_models import fast as fast
from tests.support.captured_models import model as model
from tests.support.emulated import device as device


class TestDropIn:
    def test_it_is_the_model_but_for_its_calls(self, fast: Any, model: Any) -> None:
        assert isinstance(fast, Scaled) and isinstance(fast, nn.Module)
        assert list(fast.state_dict()) == list(model.state_dict())
        assert list(map(id, fast.parameters())) == list(map(id, model.parameters()))
        assert fast.first is model.first and fast.scale == 2.0
        fast.scale = 4.0
        assert model.scale == 4.0
        assert fast.train() is fast and model.training

    def test_in_a_larger_model(self, model: Any) -> None:
        outer = nn.Sequential(model, nn.Linear(3, 2).cuda())
        names = list(outer.state_dict())
        outer[0] = graphdoctor.capture(model, rand(5, 4))
        assert list(outer.state_dict()) == names
        with torch.no_grad():
            outer(rand(5, 4))
        assert replayed(outer[0]) == 1

    def test_copies_and_saved_ones_are_the_plain_model(self, fast: Any, model: Any) -> None:
        twin = copy.deepcopy(fast)
        assert type(twin) is Scaled and twin.first is not model.first
        assert type(copy.deepcopy(nn.Sequential(fast))[0]) is Scaled
        file = io.BytesIO()
        torch.save(fast, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=False)) is Scaled

    def test_half_and_to_are_eager_afterwards(self, fast: Any, model: Any) -> None:
        assert fast.double() is fast
        assert_equal(fast, model, rand(5, 4).double())
        assert replayed(fast) == 0
        fast.float()
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 0

    def test_release(self, fast: Any, model: Any) -> None:
        assert_equal(fast, model, rand(5, 4))
        fast.release()
        assert_equal(fast, model, rand(5, 4))
        assert replayed(fast) == 1 and fast.fallbacks == {"it was released": 1}
        assert "it was released" in fast.explain() and fast.coverage == 0.0

    def test_graphs_go_with_the_last_reference(self, model: Any) -> None:
        fast = graphdoctor.capture(model, rand(5, 4))
        graph = weakref.ref(behind(fast).replays.graphs[0])
        del fast
        gc.collect()
        assert graph() is None

    def test_names_of_the_models_own_stay_the_models(self, device: EmulatedDevice) -> None:
        class Planned(Scaled):
            def release(self) -> str:
                return "the model's"

        model = on_device(Planned())
        fast = graphdoctor.capture(model, rand(5, 4))
        assert fast.release() == "the model's" and fast.plan.how == "whole"

    def test_calls_of_other_threads_are_right(self, fast: Any, model: Any) -> None:
        expected, answers = {}, {}
        given = {n: rand(5, 4) for n in range(4)}
        with torch.no_grad():
            expected = {n: model(x) for n, x in given.items()}

        def work(n: int) -> None:
            with torch.no_grad():
                answers[n] = [fast(given[n]) for _ in range(20)]

        threads = [threading.Thread(target=work, args=(n,)) for n in given]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(torch.equal(a, expected[n]) for n in given for a in answers[n])

    def test_used_twice_and_shared_weights(self, device: EmulatedDevice) -> None:
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)
                self.again = self.layer
                self.tied = nn.Linear(4, 4)
                self.tied.weight = self.layer.weight

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.tied(self.again(self.layer(x)))

        model = on_device(Twice())
        fast = graphdoctor.capture(model, rand(2, 4))
        assert_equal(fast, model, rand(2, 4))
        model.tied.weight = nn.Parameter(rand(4, 4))
        assert_equal(fast, model, rand(2, 4))
        assert replayed(fast) == 1

    def test_another_class_runs_its_own_code(self, device: EmulatedDevice) -> None:
        """As parametrizations make one, for a tensor of the captured module itself."""
        fast, other = (nn.Linear(4, 4).cuda() for _ in range(2))
        other.load_state_dict(fast.state_dict())
        fast = graphdoctor.capture(fast, rand(2, 4))
        for each in (fast, other):
            parametrize.register_parametrization(each, "weight", nn.Tanh())
        assert_equal(fast, other, rand(2, 4))
        assert isinstance(fast, nn.Linear) and fast.__class__.__name__ == "ParametrizedLinear"
        assert "the class of the captured module was reassigned" in fast.fallbacks


class TestBadInput:
    def test_a_captured_model(self, fast: Any) -> None:
        with pytest.raises(UsageError, match="captured already"):
            graphdoctor.capture(fast, rand(5, 4))

    def test_inputs_of_a_step(self, device: EmulatedDevice) -> None:
        with pytest.raises(UsageError, match="a step takes no inputs"):
            graphdoctor.capture(torch.relu, rand(3))

    def test_what_cannot_be_called(self, device: EmulatedDevice) -> None:
        with pytest.raises(UsageError, match=r"takes a torch\.nn\.Module, and got a Tensor"):
            graphdoctor.capture(rand(3))

    def test_wrappers(self, model: Any) -> None:
        with pytest.raises(UsageError, match=r"DataParallel.*the module inside it"):
            graphdoctor.capture(nn.DataParallel(model), rand(5, 4))
        with pytest.raises(UsageError, match="TorchScript"):
            graphdoctor.capture(torch.jit.script(nn.Linear(4, 4)), rand(5, 4))

    def test_a_graphed_model(self, device: EmulatedDevice) -> None:
        model = nn.Linear(4, 4).cuda()
        torch.cuda.make_graphed_callables(model, (rand(2, 4),))
        fast = graphdoctor.capture(model, rand(2, 4))
        assert "make_graphed_callables already" in fast.explain()

    def test_a_hook_that_was_there_before(self, model: Any) -> None:
        seen = []
        model.first.register_forward_hook(lambda m, i, o: seen.append(1))
        fast = graphdoctor.capture(model, rand(5, 4))
        assert "first has the hook" in fast.explain()
        count = len(seen)
        fast(rand(5, 4))
        assert len(seen) == count + 1

    def test_a_model_on_the_cpu(self, device: EmulatedDevice) -> None:
        fast = graphdoctor.capture(nn.Linear(3, 3), torch.randn(2, 3))
        assert "put them there" in fast.explain() and fast(torch.randn(2, 3)).shape == (2, 3)

    def test_a_model_that_fails(self, model: Any) -> None:
        with pytest.raises(UserCodeError, match="running the step failed"):
            graphdoctor.capture(model, rand(5, 5))

    def test_no_graphs(self, model: Any) -> None:
        with pytest.raises(UsageError, match="at least 1; got 0"):
            graphdoctor.capture(model, rand(5, 4), max_graphs=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_everything_is_eager_and_the_emulated_verdict_is_told() -> None:
    model = nn.Linear(3, 3)
    fast = graphdoctor.capture(model, torch.randn(2, 3))
    assert fast.plan.how == "eager" and "there is no GPU here" in fast.explain()
    assert "an emulated GPU says safe" in fast.explain()
    given = torch.randn(2, 3)
    assert torch.equal(fast(given), model(given)) and fast(given).requires_grad


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, graphdoctor; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_takes_the_name_of_a_public_function() -> None:
    for name in ("capture", "analyze"):
        assert importlib.util.find_spec(f"graphdoctor.{name}") is None
        assert callable(getattr(graphdoctor, name))


@pytest.mark.gpu
def test_on_a_gpu_replays_equal_eager() -> None:
    model = on_device(Scaled())
    fast = graphdoctor.capture(model, rand(5, 4))
    for _ in range(5):
        given = rand(5, 4)
        with torch.no_grad():
            torch.testing.assert_close(fast(given), model(given))
    assert replayed(fast) == 5
