"""The split of a training step: what it leaves alone, what it refuses, and its code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from graphdoctor.strategies import STRATEGIES
from graphdoctor.strategies.strategy import CannotBuild
from graphdoctor.target import Inputs
from sample_models import adam_training, lr_schedule
from tests.support.split_steps import (
    SPLIT,
    Body,
    assert_unchanged,
    backward,
    scaled,
    state_of,
    training,
)
from tests.support.trying import tried


def refusal(body: Body) -> str:
    with tried(training(body)) as found:
        before = state_of(found)
        with pytest.raises(CannotBuild) as error:
            SPLIT.build(found.session, found.known)
        assert_unchanged(found, before)
        for optimizer in {"sgd", "adam"} & found.known.roots.keys():
            assert "step" not in vars(found.known.roots[optimizer])
    return str(error.value)


def test_it_is_in_the_list_behind_whole() -> None:
    assert [strategy.name for strategy in STRATEGIES][:2] == ["whole", "split-step"]


# What it leaves alone.


def test_state_and_patches_are_afterwards_what_they_were() -> None:
    with tried(training(scaled)) as found:
        before = state_of(found)
        roots = found.session.target.roots
        own = {name: vars(roots[name]).get("step") for name in ("sgd", "scaler", "schedule")}
        functions = (torch.nn.utils.clip_grad_norm_, clip_grad_norm_, torch.Tensor.item)
        built = SPLIT.build(found.session, found.known)
        assert_unchanged(found, before)
        built.call(found.session.batches[0])
        built.release()
        found.session.start.restore()
        assert_unchanged(found, before)
        assert own == {name: vars(roots[name]).get("step") for name in own}
        now = (torch.nn.utils.clip_grad_norm_, globals()["clip_grad_norm_"], torch.Tensor.item)
        assert now == functions
        assert built.operators == 0  # nothing is left to call


def test_an_optimizer_whose_options_changed_since_steps_eagerly() -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.sgd.zero_grad()
        loss = backward(ns, data)
        ns.sgd.step()
        return loss.detach()

    with tried(training(body)) as found:
        target, start = found.session.target, found.session.start
        built = SPLIT.build(found.session, found.known)
        assert len(built._capture.graphs) == 2
        optimizer = target.roots["sgd"]
        assert isinstance(optimizer, torch.optim.SGD)
        weights = []
        (data,) = found.session.batches[0].args
        for call in (lambda: target.step(data), lambda: built.call(Inputs((data,)))):
            start.restore()
            optimizer.param_groups[0]["lr"] = 0.7  # from outside, as a schedule of epochs does
            call()  # type: ignore[no-untyped-call]
            weights.append(target.roots["model"][0].weight.clone())  # type: ignore[index]
        start.restore()
        assert torch.equal(*weights)


# What it refuses, and what it says.


def test_an_inference_does_not_fit() -> None:
    with tried(lambda: (torch.nn.Linear(4, 4).cuda(), (torch.ones(2, 4).cuda(),))) as found:
        assert (
            SPLIT.reason_against(found.known)
            == "it splits training steps, and this step does not train"
        )


def test_a_step_without_an_optimizer_does_not_fit() -> None:
    with tried(training(lambda ns, data: backward(ns, data).detach())) as found:
        if found.known.mode == "training":
            assert "optimizer" in SPLIT.reason_against(found.known)
        with pytest.raises(CannotBuild, match="nothing to split it at"):
            SPLIT.build(found.session, found.known)


def test_a_closure_is_refused() -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        return ns.sgd.step(lambda: backward(ns, data))

    assert refusal(body).startswith("sgd.step() is given a closure")


@pytest.mark.parametrize(
    "look",
    [
        lambda number, loss: loss * number,
        lambda number, loss: loss if number > 0 else -loss,
        lambda number, loss: loss if number else -loss,
        lambda number, loss: f"{number:.3f}",
        lambda number, loss: loss if isinstance(number, float) else None,
        lambda number, loss: round(number, 3),
        lambda number, loss: [1, 2, 3].index(number),
    ],
)
def test_python_that_looks_at_a_number_is_refused(look: Callable[..., object]) -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.adam.zero_grad()
        loss = backward(ns, data)
        number = loss.item()
        ns.adam.step()
        try:
            return look(number, loss.detach())
        except Exception:  # the refusal must not be taken for an error of the step
            return None

    said = refusal(body)
    assert "of test_split_step.py reads what item() gives on the host" in said


def test_a_number_that_the_step_keeps_is_refused() -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.adam.zero_grad()
        loss = backward(ns, data)
        ns.adam.step()
        ns.last = loss.item()
        return loss.detach()

    assert refusal(body).startswith("the step keeps a value that it read from the device in ")


def test_a_rate_that_the_step_sets_in_python_is_refused() -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.count += 1
        ns.sgd.param_groups[0]["lr"] = 0.1 / ns.count
        ns.sgd.zero_grad()
        loss = backward(ns, data)
        ns.sgd.step()
        return loss.detach()

    said = refusal(body)
    assert said.startswith(
        "the step changes sgd.param_groups[0].lr in Python, on which sgd depends"
    )


def test_a_finding_outside_the_glue_is_named_and_the_failed_capture_leaves_nothing_behind() -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.sgd.zero_grad()
        loss = backward(ns, data)
        ns.sgd.step()
        torch.cuda.synchronize()
        return loss.detach()

    with tried(training(body)) as found:
        assert SPLIT.reason_against(found.known).startswith("GD108 (test_split_step.py:")
    assert "torch.cuda.synchronize" in refusal(body)


def test_an_optimizer_that_steps_inside_the_backward_pass_is_refused() -> None:
    def target() -> object:
        weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())

        def step(data: torch.Tensor) -> object:
            loss = (weight * data).sum()
            loss.backward()
            optimizer.zero_grad()
            return loss.detach()

        state = {"weight": weight, "optimizer": optimizer}
        return SimpleNamespace(step=step, inputs=(torch.ones(4, device="cuda"),), state=state)

    with tried(target) as found, pytest.raises(CannotBuild, match="runs inside the backward pass"):
        SPLIT.build(found.session, found.known)


def test_an_error_of_the_step_is_the_reason(tmp_path: Path) -> None:
    fails = tmp_path / "fails"  # a file is no part of the state that is put back

    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.sgd.zero_grad()
        loss = backward(ns, data)
        ns.sgd.step()
        if fails.exists():
            raise KeyError("after the step")
        return loss.detach()

    with tried(training(body)) as found:
        before = state_of(found)
        fails.touch()
        with pytest.raises(CannotBuild, match=r"KeyError: 'after the step' in line \d+ of test_"):
            SPLIT.build(found.session, found.known)
        assert_unchanged(found, before)


# The code to paste.


def test_the_code_is_python_and_has_the_glue_that_the_step_has() -> None:
    with tried(training(scaled)) as found:
        code = SPLIT.code(found.known)
    compile(code, "pasted", "exec")
    assert "scaler.step(optimizer)" in code and "scheduler.step()" in code
    assert "# A shorter last batch" in code and "drop_last" in code
    with tried(adam_training.graphdoctor_target) as found:
        code = SPLIT.code(found.known)
    assert "scaler" not in code and "scheduler" not in code


def test_the_code_says_where_work_after_the_optimizer_and_other_optimizers_belong() -> None:
    def averaged() -> object:
        model, average = torch.nn.Linear(4, 2).cuda(), torch.nn.Linear(4, 2).cuda()
        optimizers = [
            torch.optim.SGD(model.parameters(), 0.1),
            torch.optim.SGD(average.parameters()),
        ]

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizers[0].zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizers[0].step()
            optimizers[1].step()
            with torch.no_grad():
                average.weight.lerp_(model.weight, 0.1)
            return loss.detach()

        inputs = (torch.randn(8, 4, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, average, *optimizers])

    with tried(averaged) as found:
        code = SPLIT.code(found.known)
    compile(code, "pasted", "exec")
    assert "loss_function(model, *static_inputs)" in code  # one input has no second to be a target
    assert "and the others, in the order of your step" in code
    assert "the rest of your step" in code


def test_the_code_trains_as_eager_does_when_it_is_pasted() -> None:
    with tried(lr_schedule.graphdoctor_target) as found:
        target, start = found.session.target, found.session.start
        roots = target.roots
        names: dict[str, object] = {name: roots[name] for name in ("model", "optimizer")}
        names |= {"scheduler": roots["scheduler"], "torch": torch}
        names["loss_function"] = torch.nn.CrossEntropyLoss()
        names["examples"] = tuple(t.clone() for t in found.session.batches[0].args)  # type: ignore
        exec(SPLIT.code(found.known), names)
        gradients = [p.grad for p in roots["model"].parameters()]  # type: ignore[attr-defined]

        def weights(call: Callable[..., object]) -> list[torch.Tensor]:
            start.restore()
            for parameter, grad in zip(roots["model"].parameters(), gradients, strict=True):  # type: ignore
                parameter.grad = grad
            for batch in found.session.batches:
                call(*batch.args)
            return [p.detach().clone() for p in roots["model"].parameters()]  # type: ignore

        fast, eager = weights(names["fast_step"]), weights(target.step)  # type: ignore[arg-type]
        start.restore()
        assert all(map(torch.equal, fast, eager))
