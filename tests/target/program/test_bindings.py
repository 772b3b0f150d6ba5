"""Which statement puts a module that a step calls into a variable of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.values.program import CalledModule
from tests.support.programs import run

HEAD = "import torch\n\ndef net():\n    return torch.nn.Linear(4, 4).cuda()\n\n"
USE = "with torch.no_grad():\n    for _ in range(12):\n        model(torch.ones(2, 4).cuda())\n"
TRAIN = """\
def train({argument}):
    for _ in range(12):
        optimizer.zero_grad()
        {called}(torch.ones(2, 4).cuda()).sum().backward()
        optimizer.step()

"""
OPTIMIZER = "optimizer = torch.optim.SGD({}.parameters(), lr=0.1)\n"


def found(tmp_path: Path, text: str) -> tuple[CalledModule, str]:
    """What was found, and the line below which it can be put in another's place."""
    file = tmp_path / "program.py"
    file.write_text(text)
    ran = run(file)
    assert ran.report.exit_code == 0, ran.said
    (step,) = (each for each in ran.report.steps if each.report is not None)
    (module,) = step.modules
    return module, text.split("\n")[module.line - 1].strip() if module.line else ""


def in_main(before: str) -> str:
    """A program whose main function does this before it trains the model."""
    body = "".join(f"    {row}\n" for row in before.splitlines())
    train = TRAIN.format(argument="model, optimizer", called="model")
    return f"{HEAD}{train}def main():\n{body}    {OPTIMIZER.format('model')}    train(model, optimizer)\nmain()\n"


def in_class() -> str:
    made = "class Task:\n    def __init__(self):\n        self.model = net()\n        self.done = 0\n\n"
    train = TRAIN.format(argument="self", called="self.model")
    method = "".join(f"    {row}\n" if row else "\n" for row in train.splitlines())
    return f"{HEAD}{made}{method}task = Task()\n{OPTIMIZER.format('task.model')}task.train()\n"


@pytest.mark.parametrize(
    ("text", "expression", "line"),
    [
        (HEAD + "model = net()\nmodel = model.eval()\n" + USE, "model", "model = model.eval()"),
        (HEAD + "if True:\n    model = net()\nelse:\n    model = None\n" + USE, "model", "model = None"),
        (in_main("model = net()"), "model", "model = net()"),
        (in_main("with torch.no_grad():\n    model = net()"), "model", "model = net()"),
        (in_class(), "self.model", "self.model = net()"),
    ],
)  # fmt: skip
def test_the_last_statement_that_binds_it_is_found(
    text: str, expression: str, line: str, tmp_path: Path
) -> None:
    module, code = found(tmp_path, text)
    assert (module.expression, code, module.reason) == (expression, line, "")
    assert module.trains is ("backward" in text)


def test_a_statement_in_a_loop_that_binds_it_to_itself_is_none(tmp_path: Path) -> None:
    loop = USE.replace("        model(", "        model = model.eval()\n        model(")
    module, code = found(tmp_path, HEAD + "model = net()\n" + loop)
    assert (module.expression, code) == ("model", "model = net()")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD + "models = [net()]\n" + USE.replace("model(", "models[0]("), "no statement"),
        (HEAD + "model = net()\nmodel = torch.compile(model)\n" + USE, "torch.compile"),
        (HEAD + "import graphdoctor\nmodel = graphdoctor.capture(net())\n" + USE, "captured already"),
    ],
)  # fmt: skip
def test_what_cannot_be_put_in_place_says_why(text: str, reason: str, tmp_path: Path) -> None:
    module, _ = found(tmp_path, text)
    assert reason in module.reason and not module.expression
