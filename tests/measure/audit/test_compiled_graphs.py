"""Graphs of `torch.compile(mode="reduce-overhead")`: torch itself sees to most of what can go wrong with graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import library

import graphdoctor
from graphdoctor.values.audited import AuditReport
from tests.support.emulated import captured

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def compile_anew() -> Iterator[None]:
    pytest.importorskip("triton")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, mode="reduce-overhead")


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 64)).cuda()


def batch(value: int) -> torch.Tensor:
    return torch.full((8, 64), float(value), device="cuda")


def audited(program: Callable[[], object]) -> AuditReport:
    with graphdoctor.audit() as found:
        program()
    report = found.report()
    assert report.replays > 0
    return report


def test_inference_is_silent() -> None:
    model = net()

    @torch.no_grad()
    def program() -> None:
        call = compiled(model)
        for value in range(12):
            torch.testing.assert_close(call(batch(value)), model(batch(value)))

    assert not audited(program).has_faults


def test_training_is_silent() -> None:
    def losses(wrap: Callable[[Any], Any]) -> list[float]:
        model, found = net(), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        call = wrap(model)
        for value in range(12):
            loss = call(batch(value)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    expected = losses(lambda model: model)

    def program() -> None:
        torch.testing.assert_close(losses(compiled), expected, rtol=1e-3, atol=1e-3)

    assert not audited(program).has_faults


def test_torch_captures_again_when_a_weight_has_other_memory() -> None:
    model = net()

    @torch.no_grad()
    def program() -> None:
        call = compiled(model)
        for value in range(12):
            if value == 6:
                model[0].weight.data = model[0].weight.flip(0)
            x = batch(value)
            torch.testing.assert_close(call(x), model(x), rtol=1e-3, atol=1e-3)

    report = audited(program)
    assert not report.has_faults
    assert report.captures > 1


def test_torch_captures_again_when_a_number_changes() -> None:
    class Scaled(torch.nn.Module):
        scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.scale).sin()

    model = Scaled()

    @torch.no_grad()
    def program() -> None:
        call = compiled(model)
        for value in range(12):
            model.scale = 1.0 if value < 6 else 0.5
            torch.testing.assert_close(call(batch(value)), model(batch(value)))

    assert not audited(program).has_faults


def test_torch_raises_for_kept_outputs_of_the_first_two_calls_only() -> None:
    """The first call is a warmup, the second is captured; each replay returns the same tensor.

    The list has no name until it is complete, so audit is silent.
    """

    @torch.no_grad()
    def program() -> None:
        call = compiled(net())
        kept = [call(batch(value)) for value in range(12)]
        for each in kept[:2]:
            with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
                each.sum()
        for each in kept[2:]:
            assert each.data_ptr() == kept[-1].data_ptr()
            assert torch.equal(each, kept[-1])

    assert not audited(program).has_faults


def list_of_outputs() -> None:
    call, outputs = compiled(net()), []
    for value in range(12):
        outputs.append(call(batch(value)))  # <- kept
    assert torch.equal(outputs[2], outputs[-1])


def list_after_warmup() -> None:
    call, outputs = compiled(net()), []
    for value in range(40):
        call(batch(value))
    for value in range(4):
        outputs.append(call(batch(value)))  # <- kept


def list_of_views() -> None:
    call, outputs = compiled(net()), []
    for value in range(12):
        outputs.append(call(batch(value))[:, 0])  # <- kept


def dictionary_of_aliased_outputs() -> None:
    model, outputs = net(), {}

    def body(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = model(x)
        return result, result[0]

    call = compiled(body)
    for value in range(12):
        outputs[value] = call(batch(value))[1]  # <- kept


@pytest.mark.parametrize(
    "program",
    [list_of_outputs, list_after_warmup, list_of_views, dictionary_of_aliased_outputs],
    ids=lambda program: program.__name__,
)
def test_a_container_of_outputs_is_reported_with_the_line_that_adds(
    program: Callable[[], None],
) -> None:
    (found,) = audited(torch.no_grad()(program)).overwritten_outputs
    assert (found.name, found.read_at) == ("outputs", None)
    assert found.kept_at is not None
    assert found.kept_at.function == program.__name__
    assert Path(__file__).read_text().splitlines()[found.kept_at.line - 1].endswith("# <- kept")


def test_a_list_of_losses_of_a_training_loop_is_reported() -> None:
    def program() -> None:
        model, losses = net(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        call = compiled(lambda x: model(x).square().mean())
        for value in range(12):
            loss = call(batch(value))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())

    (found,) = audited(program).overwritten_outputs
    assert found.name == "losses"


def test_copied_outputs_and_a_list_of_each_step_are_silent() -> None:
    @torch.no_grad()
    def program() -> None:
        first, second = compiled(net()), compiled(lambda x: x.sin() * 2)
        copies, recent = [], []
        for value in range(40):
            torch.compiler.cudagraph_mark_step_begin()
            recent.clear()
            for call in (first, second, first):
                recent.append(call(batch(value)))
            copies.append(torch.cat(recent))

    assert not audited(program).has_faults


def test_accumulated_gradients_are_silent() -> None:
    def program() -> None:
        model, losses = net(), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        call = compiled(model)
        for value in range(12):
            total = torch.zeros((), device="cuda")
            for _ in range(2):
                loss = call(batch(value)).square().mean()
                loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            losses.append(total)

    assert not audited(program).has_faults


def test_audit_goes_past_outputs_whose_memory_torch_took_away() -> None:
    """An operator of a library makes them, so the audit knows them as results of the capture."""

    @library.custom_op("graphdoctor_tests::makes_output", mutates_args=())
    def makes_output(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @makes_output.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.no_grad()
    def program() -> None:
        call = compiled(lambda x: makes_output(x.sin()))
        x = batch(1)
        graph, loss = captured(lambda: (x * 2).sum())
        outputs, losses = [], []
        for value in range(12):
            outputs.append(call(batch(value)))
            graph.replay()
            losses.append(loss)
        with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
            outputs[1].sum()

    report = audited(program)
    assert sorted(each.name for each in report.overwritten_outputs) == ["losses", "outputs"]
    assert not report.stale_tensors


def test_memory_that_an_operator_of_a_library_reads_besides_its_arguments_may_be_stale() -> None:
    caches = {"layer": torch.ones(8, 64, device="cuda")}

    @library.custom_op("graphdoctor_tests::adds_cache", mutates_args=())
    def adds_cache(x: torch.Tensor, layer: str) -> torch.Tensor:
        return x + caches[layer]

    @adds_cache.register_fake
    def _(x: torch.Tensor, layer: str) -> torch.Tensor:
        return torch.empty_like(x)

    @torch.no_grad()
    def program() -> None:
        call = compiled(lambda x: adds_cache(x.sin(), "layer").cos())
        for value in range(12):
            if value == 6:
                caches["layer"] = torch.zeros(8, 64, device="cuda")
            call(batch(value))

    (stale,) = audited(program).stale_tensors
    assert (stale.name, stale.reason) == ("caches.layer", "freed")
