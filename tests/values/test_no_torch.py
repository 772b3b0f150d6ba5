"""A command where torch is not there, or cannot be imported: one sentence, and no word of a bug in graphdoctor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname == "torch" else PathFinder.find_spec(fullname, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
"""  # a sitecustomize, so that processes that are started have none, either


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "model.py").write_text("def graphdoctor_target(): return None", encoding="utf-8")
    return python(folder, "-m", "graphdoctor", *arguments)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(folder), *(path for path in sys.path if path)]
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", ["analyze", "check", "run", "sweep"])
def test_missing_torch_is_said_with_the_python_that_lacks_it(tmp_path: Path, command: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT_TORCH, encoding="utf-8")
    ended = run(tmp_path, command, "model.py", *(["--batch", "1,2"] if command == "sweep" else []))
    assert ended.returncode == 4
    assert f"error: there is no PyTorch for {sys.executable}" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["analyze", "capture", "no_sync"])
def test_from_python_it_is_the_same_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT_TORCH, encoding="utf-8")
    ended = python(tmp_path, "-c", f"import graphdoctor; graphdoctor.{name}")
    last = ended.stderr.splitlines()[-1]
    assert f"CannotDoItHere: there is no PyTorch for {sys.executable}" in last


def test_torch_that_cannot_be_imported_is_no_bug_of_graphdoctor(tmp_path: Path) -> None:
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text(
        "raise OSError('libcudnn.so.9: cannot open shared object file')", encoding="utf-8"
    )
    ended = run(tmp_path, "analyze", "model.py")
    assert ended.returncode == 4
    assert "cannot be imported: libcudnn.so.9: cannot open shared object file" in ended.stderr
    assert "bug in graphdoctor" not in ended.stderr
