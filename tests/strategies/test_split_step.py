"""A training step in pieces: graphs, and between them the glue, which each call runs for real."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from graphdoctor.graphs.split.built_split import BuiltSplit
from graphdoctor.graphs.split.glue import GlueCall
from graphdoctor.strategies import STRATEGIES
from graphdoctor.strategies.split_step import SplitStep
from graphdoctor.strategies.strategy import CannotBuild
from graphdoctor.target import Inputs, named_tensors, named_values
from graphdoctor.values.report import Verification
from sample_models import adam_training, lr_schedule
from tests.support.trying import Tried, tried

SPLIT = SplitStep()
Body = Callable[[SimpleNamespace, torch.Tensor], object]


def training(body: Body, **choices: object) -> Callable[[], object]:
    """A target whose step runs `body` on a model with two optimizers, a schedule and a scaler.

    The body uses what it wants of them; only those are state of the step.
    """

    def target() -> object:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
        ).cuda()
        made = {
            "model": model,
            "sgd": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            "adam": torch.optim.Adam(model.parameters(), lr=0.01),
            "scaler": torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=2),
            "count": 0,
            "last": 0.0,
            **choices,
        }
        names = {"model", *body.__code__.co_names}
        ns = SimpleNamespace(**{name: made[name] for name in made if name in names})
        if "schedule" in names:
            ns.schedule = torch.optim.lr_scheduler.ExponentialLR(ns.sgd, 0.9)
        if "average" in names:
            ns.average = torch.optim.swa_utils.AveragedModel(model)
        if "plateau" in names:
            ns.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(ns.sgd, patience=0, factor=0.5)

        def step(data: torch.Tensor) -> object:
            return body(ns, data)

        return SimpleNamespace(
            step=step, inputs=(torch.randn(4, 8, device="cuda"),), state=dict(vars(ns))
        )

    return target


def verdict_and_pieces(found: Tried) -> tuple[Verification, list[str]]:
    assert SPLIT.reason_against(found.known) == ""
    built = SPLIT.build(found.session, found.known)
    result = found.verified(built)
    pieces = pieces_of(built)
    built.release()
    return result, pieces


def pieces_of(built: BuiltSplit) -> list[str]:
    pieces = built._capture.pieces
    return [piece.call.name if isinstance(piece, GlueCall) else "graph" for piece in pieces]


def backward(ns: SimpleNamespace, data: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = ns.model(data).square().mean()
    loss.backward()
    return loss


def refusal(body: Body) -> str:
    with tried(training(body)) as found:
        before = state_of(found)
        with pytest.raises(CannotBuild) as error:
            SPLIT.build(found.session, found.known)
        assert_unchanged(found, before)
        for optimizer in {"sgd", "adam"} & found.known.roots.keys():
            assert "step" not in vars(found.known.roots[optimizer])
    return str(error.value)


State = tuple[dict[str, torch.Tensor], dict[str, object]]


def state_of(found: Tried) -> State:
    roots = found.session.target.roots
    # A copy that hangs on autograd would keep its nodes, and their stream, alive.
    tensors = {path: tensor.detach().clone() for path, tensor in named_tensors(roots).items()}
    return tensors, dict(named_values(roots))


def assert_unchanged(found: Tried, before: State) -> None:
    tensors, values = state_of(found)
    assert values == before[1]
    assert tensors.keys() == before[0].keys()
    assert all(torch.equal(tensors[path], before[0][path]) for path in tensors)


def test_it_is_in_the_list_behind_whole() -> None:
    assert [strategy.name for strategy in STRATEGIES][:2] == ["whole", "split-step"]


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


def scaled(ns: SimpleNamespace, data: torch.Tensor) -> object:
    ns.sgd.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = ns.model(data).float().square().mean()
    ns.scaler.scale(loss).backward()
    ns.scaler.unscale_(ns.sgd)
    norm = clip_grad_norm_(ns.model.parameters(), 0.5)
    ns.scaler.step(ns.sgd)
    ns.scaler.update()
    ns.schedule.step()
    return loss.detach(), norm


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
        assert SPLIT.reason_against(found.known).startswith("GD108 explicit-synchronize in line ")
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


def test_an_error_of_the_step_is_the_reason() -> None:
    fails = threading.Event()  # no part of the step's state

    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.sgd.zero_grad()
        loss = backward(ns, data)
        ns.sgd.step()
        if fails.is_set():
            raise KeyError("after the step")
        return loss.detach()

    with tried(training(body)) as found:
        before = state_of(found)
        fails.set()
        with pytest.raises(CannotBuild, match=r"KeyError: 'after the step' in line \d+ of test_"):
            SPLIT.build(found.session, found.known)
        assert_unchanged(found, before)


# The code to paste.


def test_the_code_is_python_and_has_the_glue_that_the_step_has() -> None:
    with tried(training(scaled)) as found:
        code = SPLIT.code(found.known)
    compile(code, "pasted", "exec")
    assert "scaler.step(optimizer)" in code and "scheduler.step()" in code
    with tried(adam_training.graphdoctor_target) as found:
        code = SPLIT.code(found.known)
    assert "scaler" not in code and "scheduler" not in code


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
