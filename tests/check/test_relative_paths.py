"""Paths of the machine taken out of reports, so that every checkout gives the same text."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from graphdoctor.check.gate import Outcome, path_of
from graphdoctor.check.relative_paths import RelativePaths, is_inside
from graphdoctor.check.settings.settings import TargetSettings
from graphdoctor.values.check import Fault
from graphdoctor.values.report import TargetInfo
from tests.support.checking import finding, report

LIBRARY = Path(sysconfig.get_paths()["purelib"])


def test_folders_of_the_machine_are_replaced_wherever_a_path_begins(tmp_path: Path) -> None:
    local = RelativePaths(tmp_path)
    text = f"{tmp_path}/a.py, '{tmp_path}/b c.py', {LIBRARY}/lib/x.py; other{tmp_path}/c.py"
    assert local.text(text) == (f"a.py, 'b c.py', site-packages/lib/x.py; other{tmp_path}/c.py")


def test_folder_that_a_link_leads_to_is_replaced_too(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    local = RelativePaths(link)
    assert local.text(f"{real}/a.py {link}/a.py") == "a.py a.py"


def test_environment_inside_the_project_is_no_file_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / ".venv" / "site-packages"
    paths = {**sysconfig.get_paths(), "purelib": str(inside), "platlib": str(inside)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    assert RelativePaths(tmp_path).text(f"{inside}/lib.py") == "site-packages/lib.py"


def test_project_in_the_root_folder_keeps_its_paths() -> None:
    assert RelativePaths(Path("/")).text("/srv/net.py") == "/srv/net.py"


def test_all_texts_of_a_report_are_without_folders(tmp_path: Path) -> None:
    found = finding(file=f"{tmp_path}/net.py", message=f"see {tmp_path}/net.py")
    (local,) = RelativePaths(tmp_path).report(report(found)).findings
    assert local.location is not None
    assert (local.location.file, local.message) == ("net.py", "see net.py")


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("models/net.py", True),
        ("site-packages/lib.py", False),
        ("python/ast.py", False),
        ("/elsewhere/net.py", False),
        ("<string>", False),
        ("", False),
    ],
)
def test_what_is_inside_the_project(path: str, inside: bool) -> None:
    assert is_inside(path) == inside


def test_repository_above_the_project_gives_the_prefix(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "packages" / "vision"
    folder.mkdir(parents=True)
    assert RelativePaths(folder).prefix == "packages/vision/"
    assert RelativePaths(tmp_path).prefix == ""


def test_file_of_a_target_that_is_named_as_a_module() -> None:
    named = TargetSettings("net", "package.net:make")
    found = report(target=TargetInfo("net", "package/net.py", "make()", "inference"))
    assert path_of(Outcome(named, found)) == "package/net.py"
    assert path_of(Outcome(named, Fault("failed", 3, "no"))) == ""
