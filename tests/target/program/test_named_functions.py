"""The calls of one function as the steps of a program: `--step NAME`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.target.program.test_watch import ran


def test_a_named_function_in_which_nothing_is_heard_is_diagnosed_before_the_end(
    tmp_path: Path,
) -> None:
    body = """\
class Net(nn.Linear):
    def forward(self, x):
        return torch.relu(x @ self.weight)
net = Net(4, 4).cuda()
with torch.no_grad():
    for i in range(40):
        net(torch.randn(2, 4, device="cuda"))
        print(i)
"""
    seen = ran(tmp_path, body, only="Net.forward", ends=True)
    (step,) = seen.report.steps
    assert step.report is not None and step.report.verdict == "safe"
    assert seen.report.ending == "ended by graphdoctor" and len(seen.printed.split()) < 10


@pytest.mark.parametrize(
    ("inside", "names"),
    [
        ("", ["program.py:10 under train()", "program.py:10 under eval()"]),
        ("model.train(i % 3 != 2); ", ["program.py:10"]),
    ],
    ids=["set between the calls", "set by the function"],
)
def test_calls_under_train_and_under_eval_are_two_kinds_of_step(
    inside: str, names: list[str], tmp_path: Path
) -> None:
    body = f"""\
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).cuda()
loss = nn.MSELoss()
class Trainer:
    def step(self, x, i):
        {inside}return loss(model(x), x)
with torch.no_grad():
    for i in range(30):
        if not {bool(inside)}: model.train(i % 3 != 2)
        Trainer().step(torch.randn(2, 4, device="cuda"), i)
"""
    steps = ran(tmp_path, body, only="Trainer.step").report.steps
    assert [step.name for step in steps] == names
    assert sum(step.begun for step in steps) == 30
    verdicts = [step.report.verdict for step in steps if step.report is not None]
    assert verdicts == (["unsafe"] if inside else ["safe", "safe"])
