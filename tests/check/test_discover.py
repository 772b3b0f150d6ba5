"""Which files of a folder describe a model, found without running any."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.check.template import discover, lone_modules, python_files
from tests.support.checking import write

DESCRIBED = "def graphdoctor_target(): ...\n"
LONE = "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x): ...\n"
HELPER = "class Table:\n    def rows(self): ...\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(
        tmp_path,
        {
            "nets/b.py": DESCRIBED,
            "nets/a.py": DESCRIBED,
            "nets/deep/c.py": DESCRIBED,
            "nets/lone.py": LONE,
            "nets/helper.py": HELPER,
            "nets/star.py": "from helper import *\n",
            "nets/broken.py": "def",
            "nets/a.txt": DESCRIBED,
            "nets/.hidden/d.py": DESCRIBED,
            "nets/node_modules/d.py": DESCRIBED,
            "nets/build/d.py": DESCRIBED,
            "nets/env/pyvenv.cfg": "",
            "nets/env/d.py": DESCRIBED,
            "other/e.py": DESCRIBED,
        },
    )


def test_files_that_describe_a_model_are_targets_by_path(folder: Path) -> None:
    found = discover(folder / "nets", root=folder)
    assert [one.entry for one in found] == ["nets/a.py", "nets/b.py", "nets/deep/c.py"]
    assert [one.name for one in found] == ["nets/a", "nets/b", "nets/deep/c"]


def test_patterns_exclude_files_by_their_path_in_the_project(folder: Path) -> None:
    found = discover(folder / "nets", root=folder, exclude=["nets/deep/*", "a.py", "*/b.py"])
    assert [one.entry for one in found] == ["nets/a.py"]


def test_a_model_without_inputs_is_named_with_its_class(folder: Path) -> None:
    assert lone_modules(folder, root=folder) == [("nets/lone.py", ("Net",))]
    (folder / "nets" / "lone.py").write_text(LONE + DESCRIBED, encoding="utf-8")
    assert lone_modules(folder, root=folder) == []


def test_sources_of_others_are_not_looked_at(folder: Path) -> None:
    found = [path.relative_to(folder).as_posix() for path in python_files(folder, root=folder)]
    assert found == [
        *(f"nets/{name}.py" for name in ("a", "b", "broken", "helper", "lone", "star", "deep/c")),
        "other/e.py",
    ]
