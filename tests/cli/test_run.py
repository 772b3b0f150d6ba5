"""`graphdoctor run`: the program's own output and exit code, the page on stderr, the JSON, wrong calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest
import torch

from graphdoctor.cli import main
from graphdoctor.reporters import program_page
from graphdoctor.reporters.look import Look
from graphdoctor.values.locations import Location
from graphdoctor.values.program import ProgramReport, ProgramStep
from tests.support import warm
from tests.support.schemas import schema_of

PROGRAM = """\
import sys
import torch
model = torch.nn.Linear(4, 4).to("cuda" if torch.cuda.is_available() else "cpu")
with torch.no_grad():
    for i in range(9):
        out = model(torch.full((2, 4), float(i), device=model.weight.device))
        print("step", i)
print(sys.argv[1:])
sys.exit(3)
"""


def graphdoctor(
    *arguments: str | Path, started_by: Sequence[str] = (sys.executable, "-m", "graphdoctor")
) -> subprocess.CompletedProcess[str]:
    command = [*started_by, "run", "--strategies", "none", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_program_keeps_its_output_and_code_and_the_page_goes_to_stderr(tmp_path: Path) -> None:
    file, saved = tmp_path / "program.py", tmp_path / "report.json"
    file.write_text(PROGRAM)
    done = graphdoctor("--to-the-end", "--json", saved, file, "--", "--epochs", "1")
    assert done.returncode == 3
    assert done.stdout == "".join(f"step {i}\n" for i in range(9)) + "['--epochs', '1']\n"
    assert "1 step: 1 SAFE. The program ran to its end (exit code 3)." in done.stderr
    assert "1  SAFE     inference, program.py:6      9 " in done.stderr
    report = json.loads(saved.read_text())
    jsonschema.validate(report, schema_of("program"))
    assert (report["exit_code"], report["ending"], len(report["steps"])) == (3, "finished", 1)
    (step,) = report["steps"]
    assert step["recorded"] == 4 and step["slowdown"] > 0
    assert "Use --all for each step's page." in done.stderr


def test_json_alone_on_stdout_is_json_alone(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    done = graphdoctor("--json", "-", file, started_by=warm.command(warm.CLI))
    assert done.returncode == 0 and "step 0" in done.stderr
    assert json.loads(done.stdout)["ending"] == "ended by graphdoctor"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is nothing to run"),
        (["missing.py"], "missing.py is no file in"),
        (["--steps", "1", "x.py"], "at least 2"),
        (["--after", "-1", "x.py"], "a number of at least 0"),
        (["--devise", "cuda", "x.py"], "unrecognized arguments: --devise"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


def test_a_notebook_is_not_run_as_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its JSON is Python, too, and would run to its end."""
    notebook = tmp_path / "model.ipynb"
    notebook.write_text('{"cells": [], "metadata": {}}')
    assert main(["run", str(notebook)]) == 2
    assert "is a notebook" in capsys.readouterr().err


def test_the_page_shows_hostile_names_as_they_are() -> None:
    step = ProgramStep(
        name="a\x1b[31m.py:1", location=Location("a\x1b.py", 1), last_line=2, mode="training",
        begun=2, wall_s=0.1, share=0.5, reason="seen [bold]twice[/bold]",
    )  # fmt: skip
    report = ProgramReport(
        schema_version=1, tool_version="0", command=("a\x1b.py",), machine=None, ending="raised",
        exit_code=1, wall_s=1.0, diagnosis_s=0.0, steps=(step,), notes=("\x1b[2J",),
    )  # fmt: skip
    page = program_page.render(report, Look(width=80, color_system=None, base=os.getcwd()))
    assert "\x1b" not in page and "[bold]twice[/bold]" in page and "The program failed" in page
    assert max(map(len, page.splitlines())) <= 80


WARNS = """\
import numpy
import torch

model = torch.nn.Linear(4, 1, device=torch.device({device!r}))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
held = [torch.distributed.reduce_op]  # reading its class warns

def train_step(batch):
    loss = model(batch).sum() + len(held)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

scheduler.step()
for _ in range(10):
    train_step(torch.tensor([numpy.ones(4, dtype="float32")] * 3, device={device!r}))
"""


def test_warnings_name_the_lines_that_python_names(tmp_path: Path) -> None:
    """torch's functions are called by graphdoctor's; and what graphdoctor reads may warn, too."""
    file = tmp_path / "program.py"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    file.write_text(WARNS.format(device=device))
    script = warm.command("tests.support.script", str(file))
    alone = subprocess.run(script, capture_output=True, text=True, check=True)
    expected = [line for line in alone.stderr.splitlines() if "Warning: " in line]
    assert [line.split(": ")[0] for line in expected] == [f"{file}:15", f"{file}:17"]
    file.write_text(WARNS.format(device="cuda"))
    done = graphdoctor(file, started_by=warm.command(warm.CLI))
    assert [line for line in done.stderr.splitlines() if "Warning: " in line] == expected
    assert "1 step: 1 " in done.stderr
