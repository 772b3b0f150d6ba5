"""A second check takes unchanged targets from the first, says so, and gives the same bytes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from graphdoctor.check.cache import kept
from graphdoctor.check.cache.kept import FOLDER, Cache
from graphdoctor.check.cache.reads import Reads
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import render
from tests.support.checking import report, run, write

NET = """\
import torch
from helper import SIZE
def graphdoctor_target():
    return torch.nn.Linear(SIZE, 4), (torch.ones(2, SIZE),)
"""
TAKEN = "unchanged since an earlier check"
JOB, TEXT, NOTHING = b"job", render(report(), Look()), Reads((), (), (), ())


def test_only_what_changed_is_analyzed_again_and_the_page_is_the_same(tmp_path: Path) -> None:
    write(tmp_path, {"models/net.py": NET, "models/helper.py": "SIZE = 4\n"})
    write(tmp_path, {"models/other.py": NET.replace("from helper import SIZE", "SIZE = 8")})
    first = run("check", "models", "--report=json=first.json", cwd=tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    second = run("check", "models", "--report=json=second.json", cwd=tmp_path)
    assert second.stderr.startswith(f"graphdoctor: 2 of 2 targets {TAKEN} (--no-cache")
    assert second.stdout == first.stdout
    assert (tmp_path / "second.json").read_bytes() == (tmp_path / "first.json").read_bytes()

    write(tmp_path, {"models/helper.py": "SIZE = 16\n"})
    third = run("check", "models", "--report=json=third.json", cwd=tmp_path)
    assert f"1 of 2 targets {TAKEN}" in third.stderr
    fresh = run("check", "models", "--no-cache", "--report=json=fresh.json", cwd=tmp_path)
    assert fresh.stderr == ""
    assert (tmp_path / "third.json").read_bytes() == (tmp_path / "fresh.json").read_bytes()


def test_settings_of_the_gate_count_without_an_analysis_and_others_ask_for_one(
    tmp_path: Path,
) -> None:
    read = "    def forward(self, x):\n        return x * x.sum().item()\n"
    write(tmp_path, {"net.py": f"import torch\nclass Net(torch.nn.Module):\n{read}"})
    with (tmp_path / "net.py").open("a", encoding="utf-8") as file:
        file.write("def graphdoctor_target():\n    return Net(), (torch.ones(4),)\n")
    assert run("check", "net.py", cwd=tmp_path).returncode == 1
    ignored = run("check", "net.py", "--config=ignore=['GD101']", cwd=tmp_path)
    assert TAKEN in ignored.stderr and "GD101 host-read" not in ignored.stdout
    longer = run("check", "net.py", "--config=iterations=5", cwd=tmp_path)
    assert TAKEN not in longer.stderr


def test_a_target_that_cannot_be_followed_is_named_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path, {"net.py": NET.replace("from helper import SIZE", "SIZE = 4")})
    with (tmp_path / "net.py").open("a", encoding="utf-8") as file:
        file.write("import subprocess\nsubprocess.run(['true'])\n")
    for _ in range(2):
        done = run("check", "net.py", cwd=tmp_path)
        assert (
            done.stderr == "graphdoctor: not kept for the next check: net (it starts processes)\n"
        )


def test_failures_are_never_kept(tmp_path: Path) -> None:
    write(tmp_path, {"net.py": NET.replace("from helper import SIZE", "raise OSError(5)")})
    for _ in range(2):
        assert run("check", "net.py", cwd=tmp_path).stderr == ""
    assert not (tmp_path / FOLDER).exists()


def test_the_folder_is_ignored_by_git_and_marked_as_a_cache(tmp_path: Path) -> None:
    Cache(tmp_path).keep("net", JOB, TEXT, NOTHING)
    folder = tmp_path / FOLDER
    assert (folder / ".gitignore").read_text(encoding="utf-8").splitlines()[-1] == "*"
    assert (folder / "CACHEDIR.TAG").read_text(encoding="utf-8").startswith("Signature: 8a477f59")
    assert Cache(tmp_path).look_up("net", JOB) is not None


@pytest.mark.parametrize(
    "name", ["_own_digest", "_installed", "environment_digest", "platform.platform"]
)
def test_other_versions_ask_for_an_analysis(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cache(tmp_path).keep("net", JOB, TEXT, NOTHING)
    other: object = ["torch-9.dist-info"] if name == "_installed" else "another"
    monkeypatch.setattr(f"graphdoctor.check.cache.kept.{name}", lambda: other)
    assert Cache(tmp_path).look_up("net", JOB) is None


def test_a_variable_of_torch_asks_for_an_analysis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cache(tmp_path).keep("net", JOB, TEXT, NOTHING)
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    assert Cache(tmp_path).look_up("net", JOB) is None


@pytest.mark.parametrize("spoilt", [b"", b"{", b'{"version": 1}', b"\xff"])
def test_a_spoilt_entry_is_none(spoilt: bytes, tmp_path: Path) -> None:
    Cache(tmp_path).keep("net", JOB, TEXT, NOTHING)
    (entry,) = (tmp_path / FOLDER).glob("*.json")
    entry.write_bytes(spoilt)
    assert Cache(tmp_path).look_up("net", JOB) is None


def test_a_spoilt_report_is_none(tmp_path: Path) -> None:
    Cache(tmp_path).keep("net", JOB, TEXT, NOTHING)
    (entry,) = (tmp_path / FOLDER).glob("*.json")
    content = json.loads(entry.read_text(encoding="utf-8"))
    entry.write_text(json.dumps({**content, "report_json": "{}"}), encoding="utf-8")
    assert Cache(tmp_path).look_up("net", JOB) is None


def test_what_cannot_be_followed_or_cannot_be_written_says_why(tmp_path: Path) -> None:
    unfollowed = Reads((), (), (), (), reason="it uses the network")
    cache = Cache(tmp_path)
    cache.keep("net", JOB, TEXT, unfollowed)
    (tmp_path / FOLDER).write_text("a file", encoding="utf-8")
    cache.keep("other", JOB, TEXT, NOTHING)
    assert cache.not_kept["net"] == "it uses the network"
    assert "cannot be written" in cache.not_kept["other"]


def test_what_is_not_used_for_a_month_goes(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for name in ("old", "new"):
        cache.keep(name, JOB, TEXT, NOTHING)
    (old,) = (tmp_path / FOLDER).glob("old-*")
    os.utime(old, (1, 1))
    cache.clear_unused()
    assert not old.exists() and len([*(tmp_path / FOLDER).glob("*.json")]) == 1
    assert cache.look_up("new", JOB) is not None
    shutil.rmtree(tmp_path / FOLDER)
    cache.clear_unused()  # nothing there to clear


def test_graphdoctor_s_own_change_asks_for_an_analysis() -> None:
    assert len(kept._own_digest()) == 64
