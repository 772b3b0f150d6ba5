"""A batch that a closure holds is an input of the step, as one in a variable is."""

from __future__ import annotations

import functools
from collections import OrderedDict
from pathlib import Path

import torch

from graphdoctor.target.program.loop_step import differing_places
from tests.support.programs import NEVER, run

# As Lightning does it: the step is `optimizer.step(closure)`, and the closure reaches its batch through a partial.
PROGRAM = """\
import functools
import torch

class Closure:
    def __init__(self, step_fn, zero_grad_fn):
        self._step_fn, self._zero_grad_fn, self._result = step_fn, zero_grad_fn, None

    def __call__(self):
        self._zero_grad_fn()
        self._result = self._step_fn()
        self._result.backward()
        return self._result.detach()

class Loop:
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 2).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def training_step(self, kwargs):
        x, y = kwargs["batch"]
        return torch.nn.functional.mse_loss(self.model(x), y)

    def optimizer_step(self, closure):
        closure = functools.partial(closure)
        return self.optimizer.step(closure=closure)

    def run(self):
        for index in range(10):
            batch = [torch.randn(8, 4).cuda(), torch.randn(8, 2).cuda()]
            kwargs = {"batch": batch, "batch_idx": index}
            step = functools.partial(self.training_step, kwargs)
            print(f"{self.optimizer_step(Closure(step, self.optimizer.zero_grad)).item():.6f}")

Loop().run()
"""


def test_the_batch_of_a_closure_is_an_input(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    ran, alone = run(file), run(file, after=NEVER)
    (step,) = ran.report.steps
    assert step.report is not None, step.reason
    assert [f.rule for f in step.report.findings if f.effect != "replay-is-slow"] == []
    assert step.report.verdict == "safe"
    assert any("func._step_fn.args.batch" in note for note in step.report.target.notes)
    assert ran.printed == alone.printed != ""


class Holder:
    def __init__(self, batch: object, number: int, shared: object) -> None:
        self.batch, self.number, self.shared = batch, number, shared


def test_only_what_is_another_object_for_each_step_is_looked_into() -> None:
    shared = {"weights": torch.ones(2)}
    first, second = (
        functools.partial(print, OrderedDict(held=Holder((torch.ones(2), "x"), n, shared)), shared)
        for n in (1, 2)
    )
    batches, numbers = differing_places(first, second)
    assert [place.name for place in batches] == ["args.held.batch"]
    assert [place.name for place in numbers] == ["args.held.number"]
    assert numbers[0].value(second) == 2
    given = (torch.zeros(2), "y")
    batches[0].setter(first)(given)
    assert batches[0].value(first) is given
    assert batches[0].value(second) is not given


def test_a_batch_in_a_tuple_alone_cannot_be_put_in_anew() -> None:
    batches, numbers = differing_places(
        *(functools.partial(print, torch.ones(2)) for _ in range(2))
    )
    assert (batches, numbers) == ([], [])


def test_a_batch_in_a_variable_of_a_closure_is_put_in_anew() -> None:
    def closure_over(batch: torch.Tensor) -> object:
        return lambda: batch

    first, second = (closure_over(torch.full((2,), n)) for n in (1.0, 2.0))
    ((place,), _) = differing_places(first, second)
    assert place.name == "batch"
    place.setter(first)(place.value(second))
    assert first() is second()  # type: ignore[operator]
