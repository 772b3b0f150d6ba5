"""What goes wrong around a check: each one clear sentence, its exit code, and no harm to other targets."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.test_check import TINY
from tests.support.checking import run, write

CRASH = "import os, signal\n" + TINY + "\nos.kill(os.getpid(), signal.SIGSEGV)\n"
HANG = """\
import time
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        time.sleep(600)
        return x

def graphdoctor_target():
    return Net(), (torch.ones(2),)
"""
FAILS = TINY.replace("torch.ones(2, 4)", "torch.ones(2, 5)")
EXITS = TINY + "\nimport os\nos._exit(7)\n"
NOISY = 'print("::error::pwned")\n' + TINY


def test_one_target_s_crash_or_hang_costs_that_target_alone(tmp_path: Path) -> None:
    """Also one that fails, one that leaves, one that is gone, one that prints."""
    files = {"crash.py": CRASH, "hang.py": HANG, "fails.py": FAILS, "exits.py": EXITS}
    write(tmp_path, {**files, "good.py": TINY, "noisy.py": NOISY})
    write(tmp_path, {"graphdoctor.toml": f"targets = {[*files, 'good.py', 'noisy.py', 'gone.py']}"})
    done = run("check", "--time-limit=6", "--report=json=r.json", "--jobs=4", cwd=tmp_path)
    assert done.returncode == 2  # of gone.py, a mistake in the settings
    check = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    faults = {one["name"]: one["fault"] for one in check["targets"]}
    assert faults["good"] is None and faults["noisy"] is None
    kinds = {name: fault["kind"] for name, fault in faults.items() if fault}
    assert kinds == {
        "crash": "crashed",
        "hang": "timed-out",
        "fails": "failed",
        "exits": "crashed",
        "gone": "usage",
    }
    assert "SIGSEGV" in faults["crash"]["message"]
    assert 'File "hang.py", line 6 in forward' in faults["hang"]["details"]
    assert "exit code 7" in faults["exits"]["message"]
    assert "graphdoctor.toml names it as the entry of 'gone'" in faults["gone"]["message"]
    assert "pwned" not in done.stdout + done.stderr


def test_targets_are_checked_in_fresh_processes_too(tmp_path: Path) -> None:
    """As they must be on a GPU, since CUDA refuses to work in a fork."""
    write(tmp_path, {"good.py": TINY, "crash.py": CRASH})
    done = run("check", ".", "--device=auto", "--output-format=concise", cwd=tmp_path)
    assert done.returncode == 3
    assert "crash.py: error: target crashed: its process was ended by SIGSEGV" in done.stdout
    assert "1 failed target in 2 targets" in done.stdout


def test_failed_model_is_3_with_its_frames(tmp_path: Path) -> None:
    write(tmp_path, {"fails.py": FAILS})
    done = run("check", "fails.py", cwd=tmp_path)
    assert done.returncode == 3
    assert "mat1 and mat2 shapes" in done.stdout


def test_gpu_that_is_not_there_is_4(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    write(tmp_path, {"net.py": TINY})
    assert run("check", "net.py", "--device=cuda", cwd=tmp_path).returncode == 4


@pytest.mark.parametrize(
    ("files", "arguments", "sentence"),
    [
        ({}, (), "nothing to check"),
        ({}, ("gone.py",), "gone.py does not exist"),
        ({}, ("nothing",), "nothing is not a file, a folder or a target"),
        ({"empty/x.py": "1"}, ("empty",), "no target in empty. A target is a file with"),
        ({"graphdoctor.toml": "targets = ['a.py', 'a.py']"}, (), "two targets named 'a'"),
        ({"graphdoctor.toml": "target = ['a.py']"}, (), "nearest known one is 'targets'"),
        ({"net.py": TINY}, ("net.py", "--report=sarif=no/such/r"), "there is no folder no/such"),
        ({"net.py": TINY}, ("net.py", "--report=pdf=r"), "FORMAT one of full"),
        ({"net.py": TINY}, ("net.py", "--report=sarif"), "expected FORMAT=FILE"),
        ({".graphdoctor-baseline.json": "<<<<<<< a\n"}, ("x",), "merge-conflict markers"),
        ({".graphdoctor-baseline.json": '{"version": 9}'}, ("x",), "newer than version 1"),
        ({"net.py": TINY}, ("net.py", "--config", "fail-on=all"), "must be one of error"),
    ],
)
def test_mistake_is_2_and_one_sentence(
    files: dict[str, str], arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    write(tmp_path, files)
    done = run("check", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_unwritable_baseline_is_said_before_the_work(tmp_path: Path) -> None:
    write(tmp_path, {"net.py": TINY})
    done = run("baseline", "net.py", "--config", "baseline=no/such/file", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no folder" in done.stderr


def test_read_only_checkout_is_checked(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkout", {"net.py": TINY})
    os.chmod(folder, 0o555)
    try:
        done = run("check", "net.py", cwd=folder)
    finally:
        os.chmod(folder, 0o755)
    assert done.returncode == 0
    assert not (folder / ".graphdoctor-baseline.json").exists()
