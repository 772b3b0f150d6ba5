"""Analyses on shapes only: what they find, what they assume, and that the model is as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphdoctor
from graphdoctor.record import without_values
from graphdoctor.reporters.formats import written_as
from graphdoctor.reporters.look import Look
from graphdoctor.values.errors import UsageError
from graphdoctor.values.report import Report


def analyzed(subject: Any, *inputs: Any, **options: Any) -> Report:
    return graphdoctor.analyze(
        subject, *inputs, device="emulated", strategies=(), iterations=2, **options
    )


def found(report: Report) -> list[tuple[str, int]]:
    return [(f.rule, f.location.line if f.location else 0) for f in report.findings]


class Reads(torch.nn.Module):
    """Reads a value, decides by one, and selects by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.linear(x))
        scale = x.abs().max().item()
        if (x * 0).sum() > 0:
            x = x + 1
        return x[x > 0].sum() * (scale + 1)


def on_meta() -> Reads:
    with torch.device("meta"):
        return Reads()


def adam_step(model: torch.nn.Module) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_weights_on_the_meta_device_get_the_findings_of_those_with_values(mode: Any) -> None:
    with_values = analyzed(Reads(), torch.randn(4, 8), mode=mode)
    without = analyzed(on_meta(), torch.randn(4, 8), mode=mode)
    assert found(without) == found(with_values)
    assert {rule for rule, _ in found(without)} >= {"GD101", "GD107", "GD106"}
    assert without.operators == with_values.operators
    assert without.estimate is not None and with_values.estimate is not None
    assert without.estimate.launches == with_values.estimate.launches
    assert (with_values.values, without.values) == ("real", "none")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_inputs_go_where_weights_of_the_meta_device_go(device: str) -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(8, 8)
    report = analyzed(model, torch.randn(2, 8, device=device))
    assert (report.verdict, report.operators, report.findings) == ("unknown", 2, ())
    assert any("model.weight and 1 more tensors are on the meta" in x for x in report.target.notes)


@pytest.mark.parametrize(
    ("takes_values", "verdict"), [(False, "safe"), (True, "unknown")], ids=["a template", "weights"]
)
def test_what_is_on_the_meta_device_beside_weights_is_a_template_unless_its_values_are_used(
    takes_values: bool, verdict: str
) -> None:
    def built() -> object:
        model, template = torch.nn.Linear(8, 8).to("cuda"), on_meta().linear
        weights = dict(model.named_parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            given = {} if takes_values else weights
            return weights["bias"] + torch.func.functional_call(template, given, (x,))

        return step, (torch.randn(2, 8, device="cuda"),)

    report = analyzed(built)
    assert report.verdict == verdict
    without = "ran without values: template.weight and 1 more tensors are on the meta"
    assert (without in report.reason) == takes_values


def test_a_function_may_make_inputs_on_the_meta_device() -> None:
    def make() -> tuple[torch.Tensor]:
        return (torch.randn(2, 8, device="meta"),)

    assert analyzed(lambda: (on_meta().linear, make)).operators == 2


def test_what_was_assumed_is_said_with_its_line() -> None:
    report = analyzed(on_meta(), torch.randn(4, 8, device="meta"))
    assert [(one.what, one.code) for one in report.assumptions] == [
        ("0.0", "scale = x.abs().max().item()"),
        ("False", "if (x * 0).sum() > 0:"),
        ("true of every element", "return x[x > 0].sum() * (scale + 1)"),
    ]
    page = written_as("terminal", report, Look(show_all=True))
    assert "Assumed       False at" in page
    assert "test_without_values.py" in page


def test_the_model_is_on_the_meta_device_again_and_its_parameters_are_the_same() -> None:
    model = on_meta()
    step = adam_step(model)
    before = {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    report = analyzed(lambda: (step, (torch.randn(4, 8),)), mode="training")
    after = model.state_dict(keep_vars=True)
    assert report.verdict == "unknown"
    assert {name: id(tensor) for name, tensor in after.items()} == before
    assert all(tensor.is_meta for tensor in after.values())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_weights_with_values_are_bit_for_bit_what_they_were() -> None:
    model = Reads()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    analyzed(model, torch.randn(4, 8), mode="training", values="none")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_step_with_adam_has_the_operators_of_one_with_values() -> None:
    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))

    x = torch.randn(4, 8)
    with_values = analyzed(lambda: (adam_step(net()), (x,)))
    with torch.device("meta"):
        empty = net()
    without = analyzed(lambda: (adam_step(empty), (x,)))
    assert without.operators == with_values.operators
    assert found(without) == found(with_values)
    assert (with_values.verdict, without.verdict) == ("safe", "unknown")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.AdamW])
def test_fused_optimizers_need_no_shape_function(kind: Any) -> None:
    """They return nothing; some, and those with a rate as a tensor, have none."""

    def built() -> object:
        model = torch.nn.Linear(512, 512).cuda()
        rate = 0.1 if kind is torch.optim.Adagrad else torch.tensor(0.1, device="cuda")
        more = {"capturable": True} if kind is torch.optim.AdamW else {}
        optimizer = kind(model.parameters(), lr=rate, fused=True, **more)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, (torch.randn(4, 512, device="cuda"),)

    report = analyzed(built, values="none")
    assert report.captures and report.captures[0].status == "captured", report.reason
    assert not [limit for limit in report.limits if "shape function" in limit]


def test_a_step_without_hazards_is_captured_and_never_called_safe() -> None:
    report = analyzed(torch.nn.Linear(8, 8), torch.randn(4, 8), values="none")
    assert report.verdict == "unknown"
    assert "could not be verified: the step ran without values: " in report.reason
    (whole,) = report.captures
    assert (whole.status, whole.operators) == ("captured", 1)
    assert whole.verification is not None and whole.verification.status == "not-verified"


def test_parts_that_could_be_captured_are_not_verified() -> None:
    class Long(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(12):
                x = x.sin()
            scale = x.max().item()
            for _ in range(12):
                x = x.cos()
            return x * scale

    assert analyzed(Long(), torch.randn(4)).verdict == "partly-safe"
    report = analyzed(Long(), torch.randn(4), values="none")
    assert report.verdict == "unknown"
    assert report.reason == (
        "1 finding blocks whole-step capture. The rest of the step is not"
        " verified, because the step ran without values."
    )


def test_memory_that_moves_between_steps_is_found_as_before() -> None:
    class Cached(torch.nn.Module):
        def __init__(self, *, in_place: bool) -> None:
            super().__init__()
            self.in_place = in_place
            self.register_buffer("last", torch.zeros(4, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + self.last
            if self.in_place:
                self.last.copy_(x)
            else:
                self.last = x * 2
            return y

    rules = []
    for in_place in (True, False):
        with torch.device("meta"):
            model = Cached(in_place=in_place)
        rules.append([rule for rule, _ in found(analyzed(model, torch.randn(4, 8)))])
    assert "GD205" not in rules[0]
    assert "GD205" in rules[1]


def test_integers_that_are_at_hand_decide_as_they_do_with_values() -> None:
    class Padded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(10, 4)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            x = self.table(ids)
            return x if mask.all() else x * mask.unsqueeze(-1)

    with torch.device("meta"):
        model = Padded()
    ids, mask = torch.randint(10, (2, 3)), torch.tensor([[1, 1, 1], [1, 1, 0]])
    report = analyzed(model, ids, mask, vary_inputs=False)
    assert report.assumptions == ()
    assert report.operators == analyzed(Padded(), ids, mask, vary_inputs=False).operators


def test_a_step_that_fails_with_what_was_assumed_is_diagnosed_as_far_as_it_went() -> None:
    def split(x: torch.Tensor) -> torch.Tensor:
        sizes = (x > 0).sum(0).tolist()
        first, *_ = x.t().reshape(-1).split(sizes)
        return first.cos()

    report = analyzed(split, torch.ones(4, 8), values="none")
    assert "GD101" in [rule for rule, _ in found(report)]
    assert report.verdict in ("unknown", "unsafe")
    assert any("followed only to where it fails with what was assumed" in x for x in report.limits)


def test_a_step_that_fails_without_an_assumption_is_the_users() -> None:
    with pytest.raises(graphdoctor.values.errors.UserCodeError):
        analyzed(torch.nn.Linear(8, 8), torch.randn(4, 7), values="none")


def test_weights_that_leave_no_memory_run_on_shapes_only(monkeypatch: Any) -> None:
    monkeypatch.setattr(without_values, "_free_bytes", lambda: 100)
    model = torch.nn.Linear(8, 8)
    report = analyzed(model, torch.randn(4, 8))
    assert report.values == "none"
    (note,) = (
        note for note in report.target.notes if note.startswith("the step ran on shapes only")
    )
    assert "gradients and optimizer state of 2.88e-07 GB, and 1e-07 GB are free" in note
    assert analyzed(model, torch.randn(4, 8), values="real").values == "real"


def test_values_can_be_insisted_on() -> None:
    report = analyzed(on_meta(), torch.randn(4, 8), values="real")
    assert report.verdict == "unknown"
    assert "model.linear.weight and 6 more tensors are on the meta device" in report.reason


def test_a_gpu_and_no_values_do_not_go_together() -> None:
    with pytest.raises(UsageError, match="leave --device cuda out"):
        graphdoctor.analyze(torch.nn.Linear(8, 8), torch.randn(4, 8), device="cuda", values="none")
