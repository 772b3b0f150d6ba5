"""Only targets that a change touches are checked; what is not known to be untouched is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from graphdoctor.check.cache.kept import Cache
from graphdoctor.check.cache.reads import Lookup, Reads
from graphdoctor.check.narrow import shard_of, share, touched_since
from graphdoctor.check.run_targets import cache_key
from graphdoctor.check.settings.files import Project
from graphdoctor.check.settings.settings import Settings, TargetSettings
from graphdoctor.reporters.look import Look
from graphdoctor.reporters.plain_json import render
from graphdoctor.values.errors import UsageError
from tests.support.checking import commit, git, report, write

FILES = {
    "src/pack/__init__.py": "",
    "src/pack/layers.py": "from . import maths\n",
    "src/pack/maths.py": "",
    "libs/shared/tools.py": "",
    "models/one.py": "from pack.layers import Layer\n",
    "models/two.py": "import tools\n",
    "models/three.py": "import math\n",
    "models/config.yaml": "",
    "README.md": "",
}
TARGETS = tuple(TargetSettings(name, f"models/{name}.py") for name in ("one", "two", "three"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(tmp_path_factory.mktemp("narrow"), FILES)
    git("init", "--quiet", "--initial-branch=main", cwd=folder)
    commit(folder, "start")
    return folder


@pytest.fixture
def repository(template: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    shutil.copytree(template, folder)
    return folder


def _touched(folder: Path, ref: str = "HEAD", cache: Cache | None = None) -> list[str]:
    project = Project(folder, Settings(targets=TARGETS), "pyproject.toml")
    return [one.name for one in touched_since(ref, TARGETS, project, cache).targets]


@pytest.mark.parametrize(
    ("file", "touched"),
    [
        ("models/one.py", ["one"]),
        ("src/pack/maths.py", ["one"]),  # through a relative import
        ("src/pack/__init__.py", ["one"]),
        ("libs/shared/tools.py", ["two"]),  # from wherever it may be found
        ("README.md", []),
        ("src/pack/new.py", []),
        (".github/workflows/ci.yml", []),
        ("models/config.yaml", ["one", "two", "three"]),  # nobody knows who reads it
        ("pyproject.toml", ["one", "two", "three"]),
        ("requirements-dev.txt", ["one", "two", "three"]),
        (".graphdoctor-baseline.json", ["one", "two", "three"]),
    ],
)
def test_a_changed_file_touches_what_may_read_it(
    file: str, touched: list[str], repository: Path
) -> None:
    assert _touched(repository) == []
    write(repository, {file: "# changed\n"})
    assert _touched(repository) == touched


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\nimportlib.import_module('pack.' + 'layers')\n",
        "from importlib import import_module\n",
        "exec(open('x').read())\n",
        "def (:\n",
    ],
)
def test_a_target_whose_imports_cannot_be_read_is_always_touched(
    source: str, repository: Path
) -> None:
    write(repository, {"models/three.py": source})
    commit(repository, "dynamic")
    write(repository, {"src/pack/maths.py": "# changed\n"})
    assert _touched(repository) == ["one", "three"]


def test_calls_of_eval_of_a_model_are_not_dynamic(repository: Path) -> None:
    write(repository, {"models/three.py": "model.eval()\n"})
    commit(repository, "eval")
    write(repository, {"src/pack/maths.py": "# changed\n"})
    assert _touched(repository) == ["one"]


def test_a_branch_is_compared_with_where_it_left_the_other(repository: Path) -> None:
    git("checkout", "--quiet", "-b", "feature", cwd=repository)
    write(repository, {"models/one.py": "# mine\n"})
    commit(repository, "mine")
    git("checkout", "--quiet", "main", cwd=repository)
    write(repository, {"models/three.py": "# theirs\n"})
    commit(repository, "theirs")
    git("checkout", "--quiet", "feature", cwd=repository)
    assert _touched(repository, "main") == ["one"]
    assert _touched(repository) == []


def test_a_file_that_is_gone_or_renamed_touches_too(repository: Path) -> None:
    git("mv", "libs/shared/tools.py", "libs/shared/kit.py", cwd=repository)
    (repository / "models/one.py").unlink()
    assert _touched(repository) == ["one"]  # two imports nothing that is there any more
    write(repository, {"models/two.py": "import kit\n"})
    assert _touched(repository) == ["one", "two"]


def test_what_the_last_run_read_is_believed_while_it_would_read_the_same(repository: Path) -> None:
    project = Project(repository, Settings(targets=TARGETS), "pyproject.toml")
    files = (str(repository / "models/three.py"), str(repository / "models/config.yaml"))
    lookups = (Lookup(str(repository / "models"), ("math",)),)
    write(repository, {"models/config.yaml": "a: 1\n"})
    cache = Cache(repository)
    cache._began_ns += 10**12  # the files were just written
    for target in TARGETS:
        read = files if target.name == "three" else files[:1]
        job = cache_key(target, project)
        cache.keep(target.name, job, render(report(), Look()), Reads(read, (), lookups, ()))
    assert cache.not_kept == {}
    assert _touched(repository, cache=Cache(repository)) == ["three"]
    write(repository, {"models/extra.py": ""})
    assert _touched(repository, cache=Cache(repository)) == ["three"]
    write(repository, {"models/math.py": ""})  # would be imported in the place of Python's
    assert _touched(repository, cache=Cache(repository)) == ["one", "two", "three"]


def test_a_submodule_s_change_touches_who_imports_from_it(
    repository: Path, template: Path, tmp_path: Path
) -> None:
    library = write(tmp_path / "library", {"deep/kit.py": ""})
    git("init", "--quiet", cwd=library)
    commit(library, "library")
    allowed = ("-c", "protocol.file.allow=always")
    git(*allowed, "submodule", "--quiet", "add", str(library), "vendored", cwd=repository)
    write(repository, {"models/three.py": "from deep import kit\n"})
    commit(repository, "submodule")
    write(repository / "vendored", {"deep/kit.py": "# changed\n"})
    assert _touched(repository) == ["three"]


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("nowhere", "git knows no commit 'nowhere'"),
        ("models", "--changed=HEAD models"),
        ("--output=x", "is no commit"),
    ],
)
def test_a_ref_that_is_none_is_one_sentence(
    ref: str, said: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    with pytest.raises(UsageError, match=said):
        _touched(repository, ref)


def test_a_folder_without_git_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--changed: git says"):
        _touched(tmp_path)


def test_a_shallow_clone_says_what_to_fetch(repository: Path, tmp_path: Path) -> None:
    git("checkout", "--quiet", "-b", "feature", cwd=repository)
    commit(repository, "mine")
    clone = tmp_path / "clone"
    git(
        "clone",
        "--quiet",
        "--depth=1",
        "--no-single-branch",
        f"file://{repository}",
        str(clone),
        cwd=tmp_path,
    )
    git("checkout", "--quiet", "--orphan", "other", cwd=clone)
    commit(clone, "unrelated")
    with pytest.raises(UsageError, match="fetch-depth: 0"):
        _touched(clone, "origin/main")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_have_every_target_once(count: int) -> None:
    targets = [TargetSettings(f"net{number}", f"net{number}.py") for number in range(5)]
    shards = [shard_of(targets, number, count) for number in range(1, count + 1)]
    found = [one.name for shard in shards for one in share(targets, shard)]
    assert sorted(found) == [one.name for one in targets]
    assert share(targets[::-1], shards[0])[::-1] == share(targets, shards[0])
    assert shard_of(targets[1:], 1, count).of != shards[0].of
