"""A shell completes commands, options, rules, GPUs and targets, and nobody who does not ask pays for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphdoctor.cli import main
from graphdoctor.cli.completion import SHELLS
from graphdoctor.device.processes.process import environment
from tests.support.checking import write


def _asked(line: str, folder: Path) -> list[str]:
    """What could stand at the end of a command line, as a shell asks for it: by descriptor 8."""
    program = "import os, sys; os.dup2(1, 8); from graphdoctor.cli import main; main()"
    shell = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(**shell, _ARGCOMPLETE_IFS="\n", _ARGCOMPLETE_SUPPRESS_SPACE="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("graphdoctor ba", ["baseline"]),
        ("graphdoctor explain GD11", ["GD110", "GD111"]),
        ("graphdoctor explain host-ra", ["host-random"]),
        ("graphdoctor analyze x.py --gpu h", ["h100", "h100-pcie", "h200"]),
        ("graphdoctor check --output-format s", ["sarif"]),
        ("graphdoctor check --report ju", ["junit="]),
        ("graphdoctor analyze x.py --report h", ["html="]),
        ("graphdoctor check --no-c", ["--no-cache"]),
        ("graphdoctor check --config per-f", ["per-file-ignores="]),
        ("graphdoctor check --device e", ["emulated"]),
        ("graphdoctor check decoder-", ["decoder-training"]),
        ("graphdoctor check mod", ["models/"]),
        ("graphdoctor analyze models/n", ["models/net.py"]),
    ],
)
def test_a_shell_is_told_what_could_stand_next(line: str, words: list[str], tmp_path: Path) -> None:
    write(tmp_path, {"models/net.py": "", "models/notes.txt": ""})
    settings = '[[targets]]\nname = "decoder-training"\nentry = "models/net.py"\n'
    write(tmp_path, {"graphdoctor.toml": settings})
    found = _asked(line, tmp_path)
    assert set(words) <= set(found) and all(one.startswith(line.split()[-1]) for one in found)


def test_settings_that_are_wrong_are_said_by_commands_and_not_by_a_key(tmp_path: Path) -> None:
    write(tmp_path, {"graphdoctor.toml": "nonsense = ["})
    assert _asked("graphdoctor check dec", tmp_path) == []


def test_bash_completes_by_what_it_is_given(tmp_path: Path) -> None:
    program = tmp_path / "graphdoctor"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m graphdoctor "$@"\n')
    program.chmod(0o755)
    script = """
eval "$(graphdoctor completion bash)"
COMP_LINE="graphdoctor explain GD30"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
COMP_WORDS=(graphdoctor explain GD30); COMP_CWORD=2
_python_argcomplete graphdoctor
echo "${COMPREPLY[@]}"
"""
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shutil.which("bash") or "bash", "-c", script],
        env=environment(PATH=path),
        capture_output=True,
        text=True,
    )
    assert done.stdout.split()[:2] == ["GD301", "GD302"], done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_its_own_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "graphdoctor" in script and "_ARGCOMPLETE" in script
    if shutil.which(shell):
        flag = "--no-execute" if shell == "fish" else "-n"
        done = subprocess.run([shell, flag], input=script, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_who_does_not_ask_does_not_import_it() -> None:
    program = "import sys; from graphdoctor.cli import main; main(['rules']); print('argcomplete' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "False"
