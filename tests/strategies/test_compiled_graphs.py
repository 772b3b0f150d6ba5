"""A compiler's kernels in our graphs: what is captured, verified, given back, predicted and said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.estimate.gpus import load_profile
from graphdoctor.pipeline import analyze
from graphdoctor.record.session import Session
from graphdoctor.strategies import choice
from graphdoctor.strategies.compilers.compiler import CompiledModels, Function, compiled_models
from graphdoctor.strategies.compilers.in_graph import CompiledSplit, CompiledWhole
from graphdoctor.strategies.foresee import foresee
from graphdoctor.strategies.split_step import SplitStep
from graphdoctor.strategies.strategy import CannotBuild
from graphdoctor.strategies.whole import Whole
from graphdoctor.target.state.snapshot import named_tensors
from tests.support.split_steps import training
from tests.support.strategy_rows import on_a_gpu
from tests.support.trying import Tried, tried

PROFILE = load_profile("h200")


def rounding(function: Function) -> Function:
    """Stands for a compiler: the same function, of which every result is rounded differently."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * (1 + 3e-5)

    return run


def made_of(compiler: Callable[[Function], Function], session: Session) -> CompiledModels:
    built = compiled_models(session, compiler, whole=False)
    built.note = "compiled"
    return built


class RoundedWhole(CompiledWhole):
    def compiled(self, session: Session) -> CompiledModels:
        return made_of(rounding, session)


class RoundedSplit(CompiledSplit):
    def compiled(self, session: Session) -> CompiledModels:
        return made_of(rounding, session)


class WrongWhole(CompiledWhole):
    def compiled(self, session: Session) -> CompiledModels:
        return made_of(lambda function: lambda *args, **kw: function(*args, **kw) + 1, session)


def simple(ns: SimpleNamespace, data: torch.Tensor) -> object:
    ns.sgd.zero_grad()
    loss = ns.model(data).square().mean()
    loss.backward()
    ns.sgd.step()
    return loss.detach()


def weights(found: Tried) -> dict[str, torch.Tensor]:
    return {
        path: tensor.detach().clone()
        for path, tensor in named_tensors(found.session.target.roots).items()
        if path.startswith("model") and not path.endswith(".grad")
    }


def after_two(found: Tried, call: Callable[[Any], object]) -> dict[str, torch.Tensor]:
    found.session.start.restore()
    for index in range(2):
        call(found.session.inputs(index))
    seen = weights(found)
    found.session.start.restore()
    return seen


@pytest.mark.parametrize(
    ("strategy", "kind"), [(RoundedWhole(), "GraphOfModels"), (RoundedSplit(), "SplitOfModels")]
)
def test_the_graphs_hold_the_compilers_code_and_the_models_their_own(
    strategy: Any, kind: str
) -> None:
    with tried(training(simple)) as found:
        before = weights(found)
        eager = after_two(found, found.session.call)
        built: Any = strategy.build(found.session, found.known)
        assert type(built).__name__ == kind
        assert built.note == "compiled"
        assert all(torch.equal(before[path], now) for path, now in weights(found).items())
        model = found.session.target.roots["model"]
        assert "_compiled_call_impl" not in vars(model)
        replayed = after_two(found, built.call)
        built.release()
        assert any(not torch.equal(eager[path], replayed[path]) for path in eager)
        assert all(torch.allclose(eager[path], replayed[path], rtol=1e-3) for path in eager)
        again = after_two(found, found.session.call)
        assert all(torch.equal(eager[path], again[path]) for path in eager)


def test_other_rounding_is_verified_with_its_deviation_and_another_answer_is_wrong(
    device: EmulatedDevice,
) -> None:
    row = on_a_gpu(device, RoundedWhole())
    assert row.status == "verified", row.reason
    assert row.deviation is not None and 1e-5 < row.deviation < 1e-3
    assert on_a_gpu(device, WrongWhole()).status == "wrong"


def test_a_refused_capture_gives_the_compiled_models_back() -> None:
    released: list[str] = []

    def noted(session: Session) -> CompiledModels:
        built = made_of(rounding, session)
        built.at_release(lambda: released.append("models"))
        return built

    class Noted(CompiledWhole):
        def compiled(self, session: Session) -> CompiledModels:
            return noted(session)

    class NotedSplit(CompiledSplit):
        def compiled(self, session: Session) -> CompiledModels:
            return noted(session)

    def reading(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.sgd.zero_grad()
        loss = ns.model(data).square().mean()
        if float(loss) > 1e9:
            return loss
        loss.backward()
        ns.sgd.step()
        return loss.detach()

    with tried(training(reading)) as found:
        for strategy in (Noted(), NotedSplit()):
            with pytest.raises(CannotBuild):
                strategy.build(found.session, found.known)
    assert released == ["models", "models"]


def test_without_a_gpu_they_are_planned_and_predicted_and_never_called_verified() -> None:
    def target() -> object:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)] * 4
        return torch.nn.Sequential(*layers).cuda().eval(), (torch.randn(8, 64, device="cuda"),)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "STRATEGIES", (Whole(), CompiledWhole(), CompiledSplit()))
        whole, compiled, split = analyze(target, device="emulated").strategies
    assert whole.status == "verified"
    assert compiled.status == "planned"
    assert "not verified here; whole tries" in compiled.reason
    assert compiled.measurement is None and compiled.verification is None
    assert whole.predicted is not None and compiled.predicted is not None
    assert compiled.predicted.low == pytest.approx(whole.predicted.low)
    assert compiled.predicted.high > whole.predicted.high
    assert "kernels instead of" in compiled.plan
    assert split.status == "unfit"


def test_a_split_is_left_where_compiled_whole_takes_all() -> None:
    class Capturable(RoundedWhole):
        compiles = False  # so that it is tried here

    class Parts(RoundedSplit):
        compiles = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "STRATEGIES", (Whole(), SplitStep(), Capturable(), Parts()))
        rows = analyze(training(simple), device="emulated").strategies
    found = {row.strategy: row.status for row in rows}
    assert found["whole"] == "verified"
    assert found["split-step"] == found["compiled-split"] == "unfit"
    assert found["compiled-whole"] != "unfit"  # it may be faster than eager's kernels in one graph


def test_what_forbids_eagers_graphs_forbids_these(device: EmulatedDevice) -> None:
    def body(ns: SimpleNamespace, data: torch.Tensor) -> object:
        ns.sgd.zero_grad()
        loss = ns.model(data[data[:, 0] > 0]).sum()
        loss.backward()
        ns.sgd.step()
        return loss.detach()

    with tried(training(body)) as found:
        assert "GD1" in CompiledWhole().reason_against(found.known)
        assert CompiledSplit().reason_against(found.known)
        safe = replace(found.known, findings=())
        assert CompiledWhole().reason_against(safe) == ""
        model = found.known.roots["model"]
        vars(model)["_compiled_call_impl"] = model
        assert "compiled already" in CompiledWhole().reason_against(safe)


@pytest.mark.parametrize("strategy", [CompiledWhole(), CompiledSplit()])
def test_the_code_to_paste_compiles_the_models_as_was_tried_and_captures_them(
    strategy: Any,
) -> None:
    with tried(training(simple)) as found:
        code = strategy.code(found.known)
        row = foresee(strategy, found.known, PROFILE)
    compile(code, "code", "exec")
    assert '"triton.cudagraphs": False' in code and '"fallback_random": True' in code
    assert "torch.cuda.CUDAGraph()" in code
    assert row.predicted is not None and row.is_ours


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", [CompiledWhole(), CompiledSplit()])
def test_on_a_gpu_inductors_kernels_in_our_graph_train_as_eager_does(strategy: Any) -> None:
    with tried(training(simple), choice="cuda") as found:
        eager = after_two(found, found.session.call)
        built = strategy.build(found.session, found.known)
        replayed = after_two(found, built.call)
        built.release()
    assert all(torch.allclose(eager[path], replayed[path], rtol=1e-3, atol=1e-5) for path in eager)
