"""What lies at a path, in a form that another checkout can compare."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

import graphdoctor
from graphdoctor.check.cache import dependencies
from graphdoctor.check.cache.dependencies import Files, FileState, modules_in, names_in

LIBRARIES = sysconfig.get_paths()["purelib"]
STANDARD = sysconfig.get_paths()["stdlib"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "net.py").write_text("net = 1\n", encoding="utf-8")
    return folder


def test_a_path_is_told_by_whose_folder_it_lies_in(project: Path) -> None:
    files = Files(project)
    own = str(project / "models/net.py")
    installed = f"{LIBRARIES}/torch/__init__.py"
    python, ours = f"{STANDARD}/json/decoder.py", graphdoctor.__file__
    assert [files.is_library(path) for path in (own, installed, python)] == [False, True, False]
    known = [files.is_known_by_version(path) for path in (own, installed, python, ours)]
    assert known == [False, False, True, True]
    assert [files.is_users(path) for path in (own, installed, python, ours)] == [
        True, False, False, False,
    ]  # fmt: skip


def test_a_path_of_the_project_or_of_a_package_is_the_same_on_another_machine(
    project: Path,
) -> None:
    files = Files(project)
    for path, written in (
        (f"{project}/models/net.py", "{project}/models/net.py"),
        (str(project), "{project}/"),
        (f"{LIBRARIES}/torch/nn.py", "{libraries}/torch/nn.py"),
        (f"{project}-2/net.py", f"{project}-2/net.py"),
        ("/data/images", "/data/images"),
    ):
        assert files.portable(path) == written
    for path in (f"{project}/models/net.py", f"{LIBRARIES}/torch/nn.py", "/data/images"):
        assert files.absolute(files.portable(path)) == path


def test_a_file_is_known_by_what_is_in_it(project: Path) -> None:
    path = project / "models/net.py"
    before = Files(project).state(str(path))
    assert (before.path, before.size) == ("{project}/models/net.py", 8)
    os.utime(path, ns=(1, 1))
    assert Files(project).is_as(before)
    path.write_text("net = 2\n", encoding="utf-8")
    assert not Files(project).is_as(before)
    path.unlink()
    gone = Files(project).state(str(path))
    assert gone.digest == "" and not Files(project).is_as(before)
    assert Files(project).is_as(gone)


def test_folders_and_pipes_are_no_files(project: Path) -> None:
    os.mkfifo(project / "pipe")
    files = Files(project)
    assert files.state(str(project / "models")).digest == "a folder"
    assert files.state(str(project / "pipe")).digest == "no plain file"


@pytest.mark.parametrize(("size", "by_time"), [(99, False), (100, False), (101, True)])
def test_a_large_file_is_known_by_its_size_and_time(
    project: Path, monkeypatch: pytest.MonkeyPatch, size: int, by_time: bool
) -> None:
    monkeypatch.setattr(dependencies, "_LARGE_BYTES", 100)
    path = project / "weights.bin"
    path.write_bytes(b"a" * size)
    os.utime(path, ns=(5, 5))
    before = Files(project).state(str(path))
    path.write_bytes(b"b" * size)
    os.utime(path, ns=(5, 5))
    assert Files(project).is_as(before) is by_time
    os.utime(path, ns=(6, 6))
    assert not Files(project).is_as(before)


def test_an_installed_file_of_the_same_size_and_time_is_not_read(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project / "packages"
    folder.mkdir()
    file = folder / "one.py"
    file.write_text("one = 1\n", encoding="utf-8")
    os.utime(file, ns=(7, 7))

    def files() -> Files:
        found = Files(project)
        found._libraries = (f"{folder}/",)
        return found

    before = files().state(str(file))
    assert before.path == "{libraries}/one.py"
    file.write_text("one = 2\n", encoding="utf-8")
    os.utime(file, ns=(7, 7))
    assert files().is_as(before)
    os.utime(file, ns=(8, 8))
    assert not files().is_as(before)
    file.write_text("one = 1\n", encoding="utf-8")
    assert files().is_as(before)  # another time, and the same again
    file.write_text("one = 10\n", encoding="utf-8")
    assert not files().is_as(before)
    file.unlink()
    assert not files().is_as(before)
    assert files().is_as(FileState("{libraries}/one.py"))


def test_a_change_is_seen_by_the_time_that_nobody_can_give_a_file(project: Path) -> None:
    path = project / "models/net.py"
    changed_ns = path.stat().st_ctime_ns
    files = Files(project)
    assert files.has_changed_since(str(path), changed_ns)
    assert not files.has_changed_since(str(path), changed_ns + 1)
    assert not files.has_changed_since(str(path) + "x", 0)


def test_a_folder_s_names_are_in_order_and_without_what_tools_leave(project: Path) -> None:
    for name in ("b.py", "a.txt"):
        (project / name).write_text("", encoding="utf-8")
    for name in ("__pycache__", ".git", ".graphdoctor_cache", "data"):
        (project / name).mkdir()
    assert names_in(str(project)) == ("a.txt", "b.py", "data", "models")
    assert names_in(str(project / "gone")) == ()
    found = modules_in(str(project), ("b", "data", "c"))
    assert {name.partition(".")[0] for name in found} == {"b", "data"}
