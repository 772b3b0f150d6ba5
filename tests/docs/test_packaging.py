"""The package: what it imports and when, what it says about itself, and what its files promise."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import graphdoctor

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HEAVY = ("torch", "numpy", "networkx", "tensorboard", "pandas", "transformers")


def imported_by(code: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after `code`."""
    program = f"import sys\n{code}\nprint('\\n'.join(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return {name.partition(".")[0] for name in done.stderr.split()}


def calling(*arguments: str) -> str:
    return (
        "import graphdoctor.cli\n"
        f"try:\n    code = graphdoctor.cli.main({list(arguments)!r})\n"
        "except SystemExit as done:\n    code = done.code\n"
        "assert code == 0, code"
    )


@pytest.mark.parametrize("arguments", [("--help",), ("analyze", "--help"), ("--version",)])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert imported_by(calling(*arguments)).isdisjoint(
        (*HEAVY, "rich", "msgspec", "tomlkit", "difflib", "dataclasses")
    )


def test_showing_a_report_imports_nothing_heavy(tmp_path: Path) -> None:
    from graphdoctor.reporters.formats import written_as
    from graphdoctor.reporters.look import Look
    from tests.support.reports import PARTLY_SAFE

    path = tmp_path / "report.json"
    path.write_text(written_as("json", PARTLY_SAFE, Look()), encoding="utf-8")
    assert imported_by(calling("report", str(path))).isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [("explain",), ("explain", "GD101"), ("rules",)])
def test_explaining_a_rule_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert imported_by(calling(*arguments)).isdisjoint(HEAVY)


def test_processes_run_targets_for_one_that_imports_nothing_heavy() -> None:
    """The processes import torch; what waits for them must not take as long once more."""
    assert imported_by("import graphdoctor.check.run_targets").isdisjoint(HEAVY)


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert imported_by("import graphdoctor\ngraphdoctor.__version__").isdisjoint(HEAVY)


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        graphdoctor.nonsense  # noqa: B018


def test_installed_version_is_the_package_s() -> None:
    assert metadata.version("graphdoctor") == graphdoctor.__version__


def test_package_is_marked_as_typed() -> None:
    assert (ROOT / "graphdoctor" / "py.typed").is_file()


def test_changelog_has_this_version_or_unreleased_changes() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{graphdoctor.__version__}]" in changelog or "## [Unreleased]" in changelog


def test_tensorboard_is_an_extra_that_make_installs() -> None:
    """It brings pandas and gRPC, and only `analyze --trace-dir` writes for it."""
    assert not [
        one for one in PROJECT["project"]["dependencies"] if "tensorboard" in one or "tb-" in one
    ]
    assert "'.[test,tensorboard]'" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built by the backend that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("dist")
    code = (
        "import sys; from hatchling import build;"
        " build.build_wheel(sys.argv[1]); build.build_sdist(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True)
    return folder


def test_wheel_has_the_schemas_and_no_tests(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    schemas = {path.name for path in (ROOT / "docs").glob("*.schema.json")}
    assert {f"graphdoctor/schemas/{name}" for name in schemas} <= set(names)
    assert not [name for name in names if not name.startswith("graphdoctor")]


def test_sdist_has_every_file_of_the_repository(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("no git checkout, so nothing says what the repository has")
    assert set(listed.stdout.split("\n")) - {""} <= names


def test_everything_that_is_asked_for_is_pinned() -> None:
    pins = _pins()
    project = PROJECT["project"]
    asked = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
        *(one for group in PROJECT["dependency-groups"].values() for one in group),
        *PROJECT["build-system"]["requires"],
    ]
    names = {_normal(re.split(r"[<>=\[; ]", requirement)[0]) for requirement in asked}
    assert names <= set(pins)


def test_what_is_installed_beside_us_is_what_is_pinned() -> None:
    """Only for what we ask for ourselves; someone may test against another torch on purpose."""
    wrong = {
        name: version
        for name, version in _pins().items()
        if name in {"msgspec", "rich", "networkx"} and metadata.version(name) != version
    }
    assert wrong == {}


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pin) == 2 for pin in pinned)
    return {_normal(name): version for name, version in pinned}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
