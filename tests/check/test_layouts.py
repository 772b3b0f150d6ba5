"""Repositories as people have them: several projects in one, src layout, namespaces, notebooks, submodules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.checking import commit, git, run, write

LAYERS = """\
import torch

class Block(torch.nn.Module):
    def forward(self, x):
        return x * x.sum().item()
"""
NET = """\
import torch
from {} import Block

def graphdoctor_target():
    return Block(), (torch.ones(4),)
"""
FOUND = "layers.py:5: error: GD101"


def _finds(*arguments: str, cwd: Path) -> str:
    """The page of a check that finds the hazard in each of its targets, and nothing fails."""
    done = run("check", *arguments, "--output-format=concise", cwd=cwd)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed target" not in done.stdout
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    git("init", "--quiet", cwd=tmp_path)
    return tmp_path


def test_src_layout_is_checked_without_an_installation(folder: Path) -> None:
    """By the package's name and by relative imports; two folders share a namespace without an __init__.py."""
    files = {"src/pack/__init__.py": "", "src/pack/models/__init__.py": "from . import net\n"}
    write(folder, {**files, "setup.py": "", "src/pack/layers.py": LAYERS})
    write(folder, {"src/pack/models/net.py": NET.format("pack.layers")})
    write(folder, {"src/pack/models/near.py": NET.format("..layers")})
    write(folder, {"src/org/team/layers.py": LAYERS, "src/org/other/x.py": ""})
    write(folder, {"src/org/team/net.py": NET.format("org.team.layers")})
    write(folder, {"src/org/team/near.py": NET.format(".layers")})
    page = _finds(".", cwd=folder)
    assert f"src/pack/{FOUND}" in page and f"src/org/team/{FOUND}" in page
    for target in ("pack/models/net", "pack/models/near", "org/team/net", "org/team/near"):
        assert f"src/{target}" in page, page
    assert f"src/pack/{FOUND}" in _finds("src/pack/models/net.py", cwd=folder)


def test_a_monorepo_is_checked_from_above_and_from_each_project(folder: Path) -> None:
    for name in ("one", "two"):
        project = folder / "packages" / name
        settings = '[tool.graphdoctor]\ntargets = ["models/net.py"]\n'
        files = {"pyproject.toml": settings, f"pack_{name}/layers.py": LAYERS}
        write(project, {**files, "models/net.py": NET.format(f"pack_{name}.layers")})
    page = _finds(".", cwd=folder)
    assert f"packages/one/pack_one/{FOUND}" in page and f"packages/two/pack_two/{FOUND}" in page
    project = folder / "packages" / "one"
    page = _finds("--report=sarif=r.sarif", cwd=project / "models")
    assert f"pack_one/{FOUND}" in page and "in 1 target" in page
    sarif = json.loads((project / "models" / "r.sarif").read_text(encoding="utf-8"))
    place = sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "packages/one/pack_one/layers.py"


def test_a_submodule_is_checked_from_above_and_from_inside(folder: Path) -> None:
    library = write(
        folder / "library", {"pack/layers.py": LAYERS, "net.py": NET.format("pack.layers")}
    )
    git("init", "--quiet", cwd=library)
    commit(library, "library")
    above = write(folder / "above", {"graphdoctor.toml": 'targets = ["vendored/net.py"]\n'})
    git("init", "--quiet", cwd=above)
    allowed = ("-c", "protocol.file.allow=always")
    git(*allowed, "submodule", "--quiet", "add", str(library), "vendored", cwd=above)
    assert f"vendored/pack/{FOUND}" in _finds(cwd=above)
    page = _finds(
        ".", cwd=above / "vendored"
    )  # a repository of its own: other settings, other paths
    assert page.startswith(f"pack/{FOUND}")


def test_a_repository_of_notebooks_says_what_to_do(folder: Path) -> None:
    notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    write(folder, {"notebooks/model.ipynb": json.dumps(notebook)})
    for arguments in (("check", "."), ("check", "notebooks/model.ipynb"),
                      ("analyze", "notebooks/model.ipynb")):  # fmt: skip
        done = run(*arguments, cwd=folder)
        assert done.returncode == 2 and "%%graphdoctor" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert "%%graphdoctor" in run("init", cwd=folder).stdout
