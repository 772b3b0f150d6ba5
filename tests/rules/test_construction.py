"""A step of an optimizer -> the statement that constructs it, and what to write there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from graphdoctor.rules.non_capturable_optimizer import construction_of, default_rate_of
from graphdoctor.values.finding import Cure
from graphdoctor.values.locations import Location
from tests.support.programs import run

LINES = """\
{construction}
device = "cuda"

def train():
    optimizer.step()
"""


def cure(
    path: Path, construction: str, *, tensor_rate: bool = False
) -> tuple[str, tuple[str, ...]]:
    file = path / "train.py"
    file.write_text(LINES.format(construction=construction), encoding="utf-8")
    line = construction.count("\n") + 5
    found = construction_of([Location(str(file), line)], "Adam")
    made = found.capturable(tensor_rate=tensor_rate) if found is not None else Cure()
    return made.text, made.code


@pytest.mark.parametrize(
    ("construction", "fix", "code"),
    [
        (
            "optimizer = Adam(net.parameters(), args.lr)",
            "Pass `capturable=True` to `Adam()` (line 1 of train.py):",
            "optimizer = Adam(net.parameters(), args.lr, capturable=True)",
        ),
        (
            "optimizer = optim.Adam(\n    net.parameters(),\n    lr=1e-3,\n    eps=1e-6,\n)\nother = optim.Adam(other)",
            "Pass `capturable=True` to `optim.Adam()` (lines 1-5 of train.py):",
            "optimizer = optim.Adam(\n    net.parameters(), lr=1e-3, eps=1e-6, capturable=True)",
        ),
        (
            "if torch.cuda.is_available():\n    net.cuda()\nself.optimizer = Adam(p)",
            "Pass `capturable=torch.cuda.is_available()` to `Adam()` (line 3 of train.py):",
            "self.optimizer = Adam(p, capturable=torch.cuda.is_available())",
        ),
        (
            "args.cuda = not args.no_cuda and torch.cuda.is_available()\noptimizer = Adam(p)",
            "Pass `capturable=args.cuda` to `Adam()` (line 2 of train.py):",
            "optimizer = Adam(p, capturable=args.cuda)",
        ),
        (
            'gpu = torch.device("cuda" if torch.cuda.is_available() else "cpu")\noptimizer = Adam(p)',
            'Pass `capturable=(gpu.type == "cuda")` to `Adam()` (line 2 of train.py):',
            'optimizer = Adam(p, capturable=(gpu.type == "cuda"))',
        ),
        (
            'gpu = "cuda:0" if torch.cuda.is_available() else "cpu"\noptimizer = Adam(p)',
            'Pass `capturable=(gpu == "cuda:0")` to `Adam()` (line 2 of train.py):',
            'optimizer = Adam(p, capturable=(gpu == "cuda:0"))',
        ),
        (
            'gpu = torch.device(f"cuda:{n}" if torch.cuda.is_available() else "cpu")\noptimizer = Adam(p)',
            'Pass `capturable=(gpu.type == "cuda")` to `Adam()` (line 2 of train.py):',
            'optimizer = Adam(p, capturable=(gpu.type == "cuda"))',
        ),
        (
            'gpu = "cuda:" + n if torch.cuda.is_available() else "cpu"\noptimizer = Adam(p)',
            'Pass `capturable=(gpu != "cpu")` to `Adam()` (line 2 of train.py):',
            'optimizer = Adam(p, capturable=(gpu != "cpu"))',
        ),
        (
            "optimizer = Adam([\n    {'params': a, 'lr': b},\n    {'params': c},\n])",
            "Pass `capturable=True` to `Adam()` (lines 1-4 of train.py):",
            "optimizer = Adam(\n    [{'params': a, 'lr': b}, {'params': c}], capturable=True)",
        ),
        (
            "optimizer = getattr(optim, args.optim)(p, lr=lr)",
            "`getattr(optim, args.optim)` chooses the class. SGD, for example, has no `capturable`. "
            "Pass `capturable=True` to `getattr(optim, args.optim)()` (line 1 of train.py):",
            "optimizer = getattr(optim, args.optim)(p, lr=lr, capturable=True)",
        ),
        (
            "def made():\n    return Adam(p)\noptimizer = made()",
            "Pass `capturable=True` to `Adam()` (line 2 of train.py):",
            "return Adam(p, capturable=True)",
        ),
        ("first, other = Adam(a), Adam(b)\noptimizer = first", "", ""),  # which one is not said
        ("from library import optimizer", "", ""),
    ],
)  # fmt: skip
def test_the_statement_that_constructs_the_optimizer_is_the_one_to_change(
    construction: str, fix: str, code: str, tmp_path: Path
) -> None:
    assert cure(tmp_path, construction) == (fix, tuple(code.splitlines()))


def test_a_rate_that_the_program_does_not_give_is_the_default_of_the_class(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text('optimizer = Adam(p)\ndevice = "cuda"\noptimizer.step()\n', encoding="utf-8")
    found = construction_of([Location(str(file), 3)], "Adam")
    assert found is not None
    made = found.capturable(tensor_rate=True, default_rate=default_rate_of("Adam"))
    assert [edit.new_text for edit in made.edits] == [
        'Adam(p, lr=torch.tensor(0.001, device="cuda"), capturable=True)'
    ]


def test_a_program_that_names_no_gpu_moves_its_model_first(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("optimizer = Adam(p)\noptimizer.step()\n", encoding="utf-8")
    found = construction_of([Location(str(file), 2)], "Adam")
    assert found is not None
    moved = found.capturable(tensor_rate=False)
    assert moved.text == (
        "Move the model to the GPU first: `capturable=True` fails on the CPU. "
        "Pass `capturable=True` to `Adam()` (line 1 of train.py):"
    )
    assert moved.code == ("optimizer = Adam(p, capturable=True)",)


@pytest.mark.parametrize(
    ("construction", "call"),
    [
        (
            "optimizer = Adam(p, args.lr, eps=1e-6)",
            'Adam(p, eps=1e-6, lr=torch.tensor(args.lr, device="cuda"), capturable=True)',
        ),
        (
            "optimizer = Adam(p, lr=args.lr)",
            'Adam(p, lr=torch.tensor(args.lr, device="cuda"), capturable=True)',
        ),
    ],
)
def test_a_rate_that_changes_becomes_a_tensor_of_the_program_s_own_expression(
    construction: str, call: str, tmp_path: Path
) -> None:
    before, lines = cure(tmp_path, construction, tensor_rate=True)
    assert before.endswith(", capturable=True` to `Adam()` (line 1 of train.py):")
    assert ast.unparse(ast.parse("\n".join(lines))) == ast.unparse(ast.parse(f"optimizer = {call}"))


PROGRAM = """\
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
{scheduler}
for i in range(10):
    x = torch.randn(2, 4, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SCHEDULER = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)"


@pytest.mark.parametrize(
    ("scheduler", "call"),
    [
        ("", "AdamW(model.parameters(), lr=0.1, capturable=True)"),
        (
            SCHEDULER,
            'AdamW(model.parameters(), lr=torch.tensor(0.1, device="cuda"), capturable=True)',
        ),
    ],
)
def test_a_program_after_its_edit_is_safe(scheduler: str, call: str, tmp_path: Path) -> None:
    before = tmp_path / "before.py"
    before.write_text(PROGRAM.format(scheduler=scheduler), encoding="utf-8")
    report = run(before).report.steps[0].report
    assert report is not None
    (found,) = (each for each in report.findings if each.rule == "GD111")
    code = "\n".join(found.fix_code)
    statement = f"optimizer = torch.optim.{call}"
    assert ast.unparse(ast.parse(code)) == ast.unparse(ast.parse(statement))
    (edit,) = found.edits
    lines = before.read_text(encoding="utf-8").splitlines(keepends=True)
    line = lines[edit.start_line - 1]
    lines[edit.start_line - 1] = (
        line[: edit.start_column - 1] + edit.new_text + line[edit.end_column - 1 :]
    )
    after = tmp_path / "after.py"
    after.write_text("".join(lines), encoding="utf-8")
    assert [step[2] for step in run(after).summary] == ["safe"]


def test_the_module_of_lightning_is_on_the_gpu_when_its_optimizer_is_constructed(
    tmp_path: Path,
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "class Net(LightningModule):\n    def configure_optimizers(self):\n"
        "        return Adam(self.parameters())\n",
        encoding="utf-8",
    )
    found = construction_of([Location(str(file), 3)], "Adam")
    assert found is not None
    assert found.capturable(tensor_rate=False).text.startswith("Pass `capturable=True`")
