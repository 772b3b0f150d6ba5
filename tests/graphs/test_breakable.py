"""A training step in pieces: graphs, and between them the glue, which each call runs for real."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from graphdoctor.strategies.strategy import CannotBuild
from graphdoctor.target import Inputs
from sample_models import adam_training, lr_schedule
from tests.support.split_steps import (
    SPLIT,
    Body,
    assert_unchanged,
    backward,
    pieces_of,
    scaled,
    state_of,
    training,
    verdict_and_pieces,
)
from tests.support.trying import tried

# What must come out right.


def test_a_schedule_in_the_step_goes_on() -> None:
    with tried(lr_schedule.graphdoctor_target) as found:
        result, pieces = verdict_and_pieces(found)
    assert result.status == "verified", result
    assert "host state" not in result.reason  # the schedule's count goes on as in eager
    assert pieces == ["graph", "optimizer.step()", "scheduler.step()"]


def test_plain_adam_steps_eagerly_behind_a_graph() -> None:
    with tried(adam_training.graphdoctor_target) as found:
        (region,) = SPLIT.regions(found.known) or ()
        assert all(found.known.iteration.ops[index].phase != "optimizer" for index in region)
        built = SPLIT.build(found.session, found.known)
        assert found.verified(built).status == "verified"
        assert pieces_of(built) == ["graph", "optimizer.step()"]
        assert len(built._capture.graphs) == 1


def test_a_capturable_optimizer_is_a_graph_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adam_training, "DEVICE", "cuda")  # the rate too, which placing leaves alone
    with tried(adam_training.capturable) as found:
        assert len(SPLIT.regions(found.known) or ()) == 2
        built = SPLIT.build(found.session, found.known)
        assert found.verified(built).status == "verified"
        assert len(built._capture.graphs) == 2


def test_a_scaler_with_clipping_and_a_schedule() -> None:
    with tried(training(scaled), iterations=4) as found:
        result, pieces = verdict_and_pieces(found)
    assert result.status == "verified", result
    assert pieces == [
        "graph",
        "scaler.unscale_()",
        "graph",  # clipping reads nothing on the host
        "scaler.step()",
        "scaler.update()",
        "schedule.step()",
    ]


def scaled_only(ns: SimpleNamespace, data: torch.Tensor) -> object:
    ns.sgd.zero_grad()
    loss = ns.model(data).square().mean()
    ns.scaler.scale(loss).backward()
    ns.scaler.step(ns.sgd)
    ns.scaler.update()
    return loss.detach()


def test_an_overflow_skips_the_optimizer_and_backs_the_scale_off() -> None:
    with tried(training(scaled_only)) as found:
        target, start = found.session.target, found.session.start
        built = SPLIT.build(found.session, found.known)
        assert len(built._capture.graphs) == 2  # the optimizer's lies within scaler.step()
        (data,) = found.session.batches[0].args
        assert isinstance(data, torch.Tensor)
        broken = data.clone()
        broken[0, 0] = float("inf")

        def trained(call: Callable[[torch.Tensor], object]) -> list[list[float]]:
            start.restore()
            seen = []
            for batch in (data, broken, data):
                call(batch)
                model, scaler = target.roots["model"], target.roots["scaler"]
                seen.append([*model[0].weight.flatten().tolist(), scaler.get_scale()])  # type: ignore
            return seen

        eager = trained(lambda batch: target.step(batch))
        split = trained(lambda batch: built.call(Inputs((batch,))))
        start.restore()
        assert split == eager
        assert eager[0][:-1] == eager[1][:-1] != eager[2][:-1]  # the second step was skipped
        assert eager[1][-1] == eager[0][-1] / 2


def test_the_optimizer_s_graph_within_the_scaler_s_call_is_what_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tried(training(scaled_only)) as found:
        built = SPLIT.build(found.session, found.known)
        replayed: list[object] = []
        kind = type(built._capture.graphs[0])
        monkeypatch.setattr(kind, "replay", lambda graph: replayed.append(graph))
        built.call(found.session.batches[0])
        assert replayed == built._capture.graphs


def strictly_clipped(ns: SimpleNamespace, data: torch.Tensor) -> object:
    ns.adam.zero_grad()
    loss = backward(ns, data)
    with torch.no_grad():
        norm = clip_grad_norm_(ns.model.parameters(), 0.1, error_if_nonfinite=True)
        ns.adam.step()
        return loss.detach(), norm * 2


def test_clipping_that_reads_the_norm_runs_between_graphs_and_its_result_is_used() -> None:
    with tried(training(strictly_clipped)) as found:
        result, pieces = verdict_and_pieces(found)
        assert result.status == "verified", result
        assert pieces == ["graph", "clip_grad_norm_()", "adam.step()", "graph"]
        built = SPLIT.build(found.session, found.known)
        broken = torch.full((4, 8), float("nan"), device="cuda")
        with pytest.raises(RuntimeError, match="non-finite"):
            built.call(Inputs((broken,)))


class Plain(torch.optim.Optimizer):
    """Of the user's own: it needs no_grad around it, and says what it finds in a buffer."""

    def __init__(self, params: object) -> None:
        super().__init__(params, {"lr": 0.1})  # type: ignore[arg-type]
        self.seen: SimpleQueue[float] = SimpleQueue()  # no part of the step's state
        self.buffer = torch.zeros((), device="cuda")

    def step(self) -> None:  # type: ignore[override]
        self.seen.put(self.buffer.item())
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=self.param_groups[0]["lr"])


def test_an_optimizer_of_one_s_own_steps_eagerly_on_what_the_graph_before_it_computed() -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.plain.zero_grad()
        loss = backward(ns, data)
        ns.plain.buffer.add_(1)
        with torch.no_grad():
            ns.plain.step()
        return loss.detach()

    def target() -> object:
        found: SimpleNamespace = training(body)()  # type: ignore[assignment]
        found.state["plain"] = body_state.plain = Plain(found.state["model"].parameters())
        body_state.model = found.state["model"]
        found.step = lambda data: body(body_state, data)
        return found

    body_state = SimpleNamespace()
    with tried(target) as found:
        result, pieces = verdict_and_pieces(found)
        assert result.status == "verified", result
        assert pieces == ["graph", "plain.step()"]
        seen, start = body_state.plain.seen, body_state.plain.buffer.item()
        while not seen.empty():
            seen.get()
        SPLIT.build(found.session, found.known)
        assert seen.get() == start + 1  # a capture alone computes nothing
        assert body_state.plain.buffer.item() == start


def two_optimizers(ns: SimpleNamespace, data: torch.Tensor) -> object:
    first = backward(ns, data)
    ns.sgd.step()
    ns.sgd.zero_grad()
    second = backward(ns, data)
    ns.adam.step()
    ns.adam.zero_grad()  # at the end: no gradient is left where the next step begins
    return {"first": first.detach(), "second": second.detach()}


def test_two_optimizers_and_two_backward_passes() -> None:
    with tried(training(two_optimizers)) as found:
        result, pieces = verdict_and_pieces(found)
    assert result.status == "verified", result
    assert pieces == ["graph", "sgd.step()", "graph", "adam.step()"]


def accumulating(ns: SimpleNamespace, data: torch.Tensor) -> object:
    loss = backward(ns, data)
    ns.adam.step()
    return loss.detach()


def zeroed_in_place(ns: SimpleNamespace, data: torch.Tensor) -> object:
    ns.adam.zero_grad(set_to_none=False)
    return accumulating(ns, data)


@pytest.mark.parametrize("body", [accumulating, zeroed_in_place])
def test_gradients_that_stay_between_steps(body: Body) -> None:
    with tried(training(body)) as found:
        result, _ = verdict_and_pieces(found)
    assert result.status == "verified", result


def returns_a_number(ns: SimpleNamespace, data: torch.Tensor) -> object:
    ns.sgd.zero_grad()
    loss = backward(ns, data)
    number = loss.item()
    ns.sgd.step()
    ns.plateau.step(loss.item())
    return {"loss": number, "kind": "training"}


def test_a_number_that_is_only_returned_or_handed_to_a_schedule_is_read_anew() -> None:
    with tried(training(returns_a_number)) as found:
        result, pieces = verdict_and_pieces(found)
        assert result.status == "verified", result
        assert pieces == ["graph", "item()", "sgd.step()", "item()", "plateau.step()"]
        built = SPLIT.build(found.session, found.known)
        first, second = (built.call(batch) for batch in found.session.batches[:2])
        assert isinstance(first, dict) and isinstance(second, dict)
        assert type(first["loss"]) is float and first["loss"] != second["loss"]


def averaged(ns: SimpleNamespace, data: torch.Tensor) -> object:
    ns.adam.zero_grad()
    loss = backward(ns, data)
    ns.adam.step()
    ns.average.update_parameters(ns.model)
    return loss.detach()


def test_an_average_of_the_weights_goes_on() -> None:
    with tried(training(averaged)) as found:
        result, pieces = verdict_and_pieces(found)
    assert result.status == "verified", result
    assert "host state" not in result.reason
    assert pieces == ["graph", "adam.step()", "average.update_parameters()"]


def test_the_loss_may_be_read_before_the_backward_pass() -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.adam.zero_grad()
        loss = ns.model(data).square().mean()
        number = loss.item()
        loss.backward()
        ns.adam.step()
        return number

    with tried(training(body)) as found:
        result, pieces = verdict_and_pieces(found)
    assert result.status == "verified", result
    assert pieces == ["graph", "item()", "graph", "adam.step()"]


def test_a_tensor_that_the_step_puts_into_an_attribute_is_that_of_the_captured_run() -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.adam.zero_grad()
        output = ns.model(data)
        ns.last = output.detach()
        output.square().mean().backward()
        ns.adam.step()
        return None

    with tried(training(body)) as found:
        result, _ = verdict_and_pieces(found)
    assert result.status == "verified", result


@pytest.mark.gpu
@pytest.mark.parametrize(
    "subject",
    [
        lr_schedule.graphdoctor_target,
        adam_training.graphdoctor_target,
        adam_training.capturable,
        training(scaled),
        training(scaled_only),
        training(strictly_clipped),
        training(two_optimizers),
        training(accumulating),
        training(returns_a_number),
    ],
)
def test_on_a_real_device_too(subject: Callable[[], object]) -> None:
    with tried(subject, iterations=4, choice="cuda") as found:
        before = state_of(found)
        result, _ = verdict_and_pieces(found)
        assert result.status == "verified", result
        found.session.start.restore()
        assert_unchanged(found, before)


@pytest.mark.gpu
def test_a_refusal_on_a_real_device_leaves_it_usable() -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.sgd.zero_grad()
        loss = backward(ns, data)
        ns.sgd.step()
        torch.cuda.synchronize()
        return loss.detach()

    with tried(training(body), choice="cuda") as found, pytest.raises(CannotBuild):
        SPLIT.build(found.session, found.known)
    with tried(training(scaled), choice="cuda") as found:
        assert found.verdict(SPLIT).status == "verified"
