"""Safe modules as graphs in the user's own step: which are chosen, and that the step stays what it was."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.estimate import launches
from graphdoctor.strategies.modules import Modules
from graphdoctor.strategies.strategy import CannotBuild
from graphdoctor.target import named_tensors
from sample_models import detector, dynamic_branch
from tests.support.trying import tried

MODULES = Modules()


def block() -> nn.Module:
    parts = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*parts)


class Branching(nn.Module):
    """Two blocks that pay, with a branch on a value between them, and a layer that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.small = block(), block(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if x.sum().item() > 1e9:
            x = -x
        return self.second(self.small(x))


def training(make: Any = Branching, *, reads: bool = False) -> Any:
    def subject() -> object:
        torch.manual_seed(0)
        model = make().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor) -> object:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item() if reads else loss.detach()

        return SimpleNamespace(
            step=step,
            inputs=(torch.randn(4, 8, device="cuda"),),
            state={"model": model, "optimizer": optimizer},
        )

    return subject


def test_a_branch_stays_in_python_and_its_modules_are_graphs() -> None:
    with tried(dynamic_branch.graphdoctor_target, iterations=4) as step:
        assert MODULES.reason_against(step.known) == ""
        built = MODULES.build(step.session, step.known)
        assert {"module1", "module2", "module3"} <= set(built.made.paths)
        assert step.verified(built).status == "verified"
        assert all(built.made.modules[path].replays for path in ("module1", "module2", "module3"))
        assert not built.made.fallbacks
        built.release()


def test_inference_keeps_the_rest_of_the_step_eager() -> None:
    with tried(detector.graphdoctor_target) as step:
        built = MODULES.build(step.session, step.known)
        assert built.made.paths == ("backbone",)
        assert step.verified(built).status == "verified"
        assert built.made.replays > 3 and not built.made.fallbacks
        built.release()


class Residual(nn.Module):
    """Its norm uses its input twice, and the step uses that input once more: three gradients are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.RMSNorm(8), block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if x.sum().item() > 1e9:
            x = -x
        return self.last(x + self.norm(x))


class OwnNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def with_own_norm() -> nn.Module:
    model = Residual()
    model.norm = OwnNorm()  # type: ignore[assignment]
    return model


def test_gradients_that_a_graph_adds_up_in_its_own_order_are_told_from_an_error() -> None:
    with tried(training(with_own_norm)) as known:
        built = MODULES.build(known.session, known.known)
        try:
            assert "norm" in built.made.modules
            right = known.verified(built)
            assert right.status == "verified", right.reason
            assert "in an order of their own" in right.reason
            assert "no more than rounding" in right.reason
            spoil(built)
            assert known.verified(built).status == "wrong"
        finally:
            built.release()


def spoil(built: Any) -> None:
    """Let a graph give answers that are off by no more than rounding, in no other order of any sum."""
    norm = built.made.modules["norm"]
    call = type(norm).__call__

    class Spoiled(type(norm)):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return call(self, *args, **kwargs) * (1 + 3e-7)

    norm.__class__ = Spoiled


def test_modules_that_do_not_pay_stay_eager() -> None:
    with tried(training()) as step:
        built = MODULES.build(step.session, step.known)
        assert built.made.paths == ("first", "second")
        assert step.verified(built).status == "verified"
        built.release()


def test_a_whole_model_is_graphed_where_only_code_around_it_is_unsafe() -> None:
    with tried(training(block, reads=True)) as step:
        built = MODULES.build(step.session, step.known)
        assert built.made.paths == ("",)
        assert step.verified(built).status == "verified"
        built.release()


class Pyramid(nn.Module):
    """Returns as torchvision's backbones do: keys "0", "1" and "pool"."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = block(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> OrderedDict[str, torch.Tensor]:
        y = self.body(x)
        return OrderedDict([("0", y), ("1", self.last(y)), ("pool", y[:, ::2].clone())])


def test_a_root_that_returns_an_ordered_dict_is_one_graph() -> None:
    def subject() -> object:
        torch.manual_seed(0)
        return Pyramid().eval().cuda(), (torch.randn(4, 8, device="cuda"),)

    with torch.no_grad(), tried(subject) as step:
        built = MODULES.build(step.session, step.known)
        assert built.made.paths == ("",)
        verification = step.verified(built)
        assert verification.status == "verified", verification.reason
        assert {"output.0", "output.1", "output.pool"} <= set(
            built.left_behind(step.session.inputs(0), built.call(step.session.inputs(0))).tensors
        )
        assert not built.made.fallbacks
        built.release()


def calls_of_one_root(*, trains: bool) -> Any:
    """A step that calls its model three times, twice alike, and reads a value in between."""

    def subject() -> object:
        torch.manual_seed(0)
        model = block().cuda().train(trains)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> object:
            optimizer.zero_grad()
            first = model(x)
            scale = 1.0 if first.sum().item() < 1e9 else 2.0
            loss = (first - model(x * 2) * scale).square().mean() + model(x[:2]).mean()
            if trains:
                loss.backward()
                optimizer.step()
            return loss.detach()

        return SimpleNamespace(
            step=step,
            inputs=(torch.randn(4, 8, device="cuda"),),
            state={"model": model, "optimizer": optimizer},
        )

    return subject


@pytest.mark.parametrize("trains", [True, False])
def test_a_root_that_is_called_several_times_in_a_step(trains: bool) -> None:
    with torch.set_grad_enabled(trains), tried(calls_of_one_root(trains=trains)) as step:
        built = MODULES.build(step.session, step.known)
        assert built.made.paths == ("",)
        # Two calls wait for their backward pass at the same time; the third is of another shape.
        assert built.made.modules[""].graphs == (3 if trains else 2)
        before = built.made.replays
        assert step.verified(built).status == "verified"
        assert built.made.replays > before and not built.made.fallbacks
        regions = MODULES.regions(step.known)
        assert regions is not None
        phases = [step.known.iteration.ops[region[0]].phase for region in regions]
        assert phases.count("forward") == 3
        built.release()


class Chatty(nn.Module):
    """A model whose forward reads a value, and whose large part is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.part = block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.part(x)
        if y.sum().item() > 1e9:
            y = -y
        return self.part(y) + self.part(x * 2)


def test_a_part_of_a_root_that_is_called_several_times() -> None:
    with tried(training(Chatty)) as step:
        built = MODULES.build(step.session, step.known)
        assert built.made.paths == ("part",)
        assert built.made.modules["part"].graphs >= 2
        assert step.verified(built).status == "verified"
        assert not built.made.fallbacks
        built.release()


def test_regions_are_the_calls_of_the_chosen_modules() -> None:
    with tried(training()) as step:
        regions = MODULES.regions(step.known)
        assert regions is not None
        ops = step.known.iteration.ops
        calls = [(ops[r[0]].module.split(".")[0], ops[r[0]].phase) for r in regions]
        assert calls == [
            ("first", "forward"),
            ("second", "forward"),
            ("second", "backward"),
            ("first", "backward"),
        ]
        assert all(sum(launches(ops[i]) for i in region) >= 10 for region in regions)


def test_building_and_giving_back_change_nothing() -> None:
    with tried(training()) as step:
        roots = step.session.target.roots
        before = {path: tensor.clone() for path, tensor in named_tensors(roots).items()}
        model: Any = roots["model"]
        forwards = [m.__dict__.get("forward") for m in model.modules()]
        built = MODULES.build(step.session, step.known)
        step.session.call(step.session.inputs(0))
        assert built.made.replays == 0, "the user's step is eager between the strategy's calls"
        step.session.start.restore()
        built.release()
        after = named_tensors(roots)
        assert list(before) == list(after)
        assert all(torch.equal(before[path], tensor) for path, tensor in after.items())
        assert [m.__dict__.get("forward") for m in model.modules()] == forwards


class Hooked(nn.Module):
    """A hook in a block of blocks: on a whole block, or on one layer of it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.body = block()
        self.body.get_submodule(path).register_forward_hook(lambda *args: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) if x.sum().item() < 1e9 else x


def test_the_children_of_what_cannot_be_graphed_are_tried_if_they_pay() -> None:
    with tried(training(lambda: Hooked("1"))) as step:
        built = MODULES.build(step.session, step.known)
        # The first one's input needs no gradient: too few launches are left to pay for its calls.
        assert built.made.paths == ("body.1", "body.2", "body.3")
        assert built.made.left_out == {
            "body": "the Sequential inside it has a hook, which a replay would not run"
        }
        held, foreseen = built.holds(step.known), MODULES.regions(step.known)
        assert held is not None and foreseen is not None
        inside = {index for region in held.regions for index in region}
        assert held.calls.trained_module == len(held.regions)
        assert inside <= {index for region in foreseen for index in region}
        assert step.verified(built).status == "verified"
        built.release()


def test_a_step_of_which_nothing_is_left_is_refused_with_the_reason() -> None:
    def reading() -> nn.Module:
        model = Hooked("0.1")
        model.body = nn.Sequential(*model.body[0], *(nn.Tanh() for _ in range(9)))  # type: ignore[misc]
        return model

    with (
        tried(training(reading)) as step,
        pytest.raises(CannotBuild, match="body: the Dropout inside it has a hook, which a replay"),
    ):
        MODULES.build(step.session, step.known)


def test_a_wrapper_is_named() -> None:
    class DataParallel(nn.Module):
        """Named like torch's own, which needs several devices."""

        def __init__(self) -> None:
            super().__init__()
            self.module = block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    with tried(training(DataParallel)) as step:
        assert MODULES.reason_against(step.known) == (
            "DataParallel cannot be graphed in parts: "
            "it copies the module to several devices in each call"
        )


def test_a_step_without_modules_is_unfit() -> None:
    def subject() -> object:
        return (lambda x: x.tanh()), (torch.randn(4, 8, device="cuda"),)

    with tried(subject) as step:
        assert MODULES.reason_against(step.known) == "the step calls no module"


def test_the_code_names_modules_as_a_person_does() -> None:
    with tried(training()) as step:
        code = MODULES.code(step.known)
        compile(code, "pasted", "exec")
        line = "model.first = torch.cuda.make_graphed_callables(model.first, examples)"
        assert line in code
    with tried(detector.graphdoctor_target) as step:
        code = MODULES.code(step.known)
        compile(code, "pasted", "exec")
        assert ".backbone = graphdoctor.capture(" in code
