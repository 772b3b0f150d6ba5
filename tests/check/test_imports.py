"""Which files a file may import, by its text alone; None where the text does not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphdoctor.check.narrow import Imports
from tests.support.checking import write

FILES = {
    "app/__init__.py": "",
    "app/net.py": "import torch\nfrom app import layers\n",
    "app/layers/__init__.py": "from .norm import Norm\n",
    "app/layers/norm.py": "from ..tools import helper\n",
    "app/tools.py": "helper = 1\n",
    "app/other.py": "import app.tools as t\n",
    "lib/tools.py": "",
    "cycle_a.py": "import cycle_b\n",
    "cycle_b.py": "import cycle_a\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, FILES)
    return tmp_path


def imports(folder: Path) -> Imports:
    return Imports(sorted(folder.rglob("*.py")), folder)


def reached(folder: Path, name: str) -> set[str] | None:
    found = imports(folder).reached_from(folder / name)
    return None if found is None else {path.relative_to(folder).as_posix() for path in found}


def named(folder: Path, module: str) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in imports(folder).named(module)}


def test_a_module_is_every_file_of_its_name_and_the_packages_around_it(folder: Path) -> None:
    assert named(folder, "app") == {"app/__init__.py"}
    assert named(folder, "app.tools") == {"app/__init__.py", "app/tools.py"}
    assert named(folder, "tools") == {"app/tools.py", "lib/tools.py"}
    assert named(folder, "app.layers.norm") == {
        "app/__init__.py", "app/layers/__init__.py", "app/layers/norm.py",
    }  # fmt: skip
    assert named(folder, "layers.norm.Norm") == {"app/layers/__init__.py", "app/layers/norm.py"}
    assert named(folder, "numpy") == set()


def test_what_is_imported_imports_in_turn(folder: Path) -> None:
    assert reached(folder, "app/tools.py") == {"app/tools.py"}
    assert reached(folder, "app/other.py") == {"app/other.py", "app/__init__.py", "app/tools.py"}
    found = reached(folder, "app/net.py")
    assert found is not None
    assert found >= {"app/net.py", "app/layers/__init__.py", "app/layers/norm.py", "app/tools.py"}
    assert not found & {"app/other.py", "cycle_a.py"}


def test_files_that_import_each_other_come_to_an_end(folder: Path) -> None:
    assert reached(folder, "cycle_a.py") == {"cycle_a.py", "cycle_b.py"}


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("from . import tools", {"app/tools.py"}),
        ("from .tools import helper", {"app/tools.py"}),
        ("from .layers import norm", {"app/layers/__init__.py", "app/layers/norm.py"}),
        ("from .. import cycle_a", {"cycle_a.py"}),
        ("from tools import helper", {"app/tools.py", "lib/tools.py"}),
        ("import lib.tools", {"lib/tools.py"}),
        ("def f():\n    import cycle_b", {"cycle_a.py", "cycle_b.py"}),
    ],
)
def test_an_import_is_found_in_each_of_its_forms(folder: Path, line: str, files: set[str]) -> None:
    (folder / "app" / "new.py").write_text(line + "\n", encoding="utf-8")
    found = reached(folder, "app/new.py")
    assert found is not None and files <= found


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module(name)\n",
        "from importlib import import_module\n",
        "__import__('cycle_a')\n",
        "exec('import cycle_a')\n",
        "eval('1')\n",
        "def broken(:\n",
    ],
)
def test_what_imports_by_a_name_that_is_made_may_import_anything(folder: Path, text: str) -> None:
    (folder / "app" / "tools.py").write_text(text, encoding="utf-8")
    assert reached(folder, "app/tools.py") is None
    assert reached(folder, "app/net.py") is None  # through another file
    assert reached(folder, "cycle_a.py") is not None


def test_a_model_s_eval_makes_no_name(folder: Path) -> None:
    (folder / "app" / "tools.py").write_text("model.eval()\n", encoding="utf-8")
    assert reached(folder, "app/tools.py") == {"app/tools.py"}


def test_a_file_that_is_gone_may_have_imported_anything(folder: Path) -> None:
    assert reached(folder, "app/gone.py") is None


def test_a_package_that_is_installed_from_here_under_another_name_hides_what_it_imports(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {"src/__init__.py": "", "uses.py": "import graphdoctor_made_up_name\n"})
    assert reached(folder, "uses.py") == {"uses.py"}  # installed nowhere
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "shop").mkdir()
    (folder / "elsewhere" / "shop" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "uses.py").write_text("import shop\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder / "elsewhere"))
    known = [path for path in sorted(folder.rglob("*.py")) if "shop" not in path.parts]
    assert Imports(known, folder).reached_from(folder / "uses.py") is None
    assert Imports(known, folder / "src").reached_from(folder / "uses.py") is not None
