"""What has changed since main -> the tests to run for it, a path a line: `make test-fast`.

A module's tests are the files named after it in the folder of its room, or else the whole folder; a test
file that has changed is run itself, and so is what imports a changed helper. `make test` runs all.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
ABOUT_THE_PROJECT = {TESTS / "docs/test_docs.py", TESTS / "docs/test_architecture.py"}


def changed() -> set[str]:
    """Files that differ from where the branch left main (on main: from the commit before), and new ones."""
    branch, main = (_git("rev-parse", "--verify", "--quiet", name) for name in ("HEAD", "main"))
    since = _git("merge-base", "HEAD", "main") if main and main != branch else ["HEAD~1"]
    new = _git("ls-files", "--others", "--exclude-standard")
    return {*_git("diff", "--name-only", *since), *new}


def _git(*arguments: str) -> list[str]:
    command = ("git", "-C", str(ROOT), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def covering(file: str) -> set[Path]:
    """The test files, or folders of them, for a file that has changed."""
    path = PurePosixPath(file)
    match path.parts:
        case ("graphdoctor", *_):
            return _of_module(path)
        case ("tests", "support", *_):
            return _using(rf"\btests\.support\.{path.stem}\b")
        case ("tests", _, *_, name) if name.startswith("test_"):
            return {ROOT / path}
        case ("tests", folder, *_):
            return _using(rf"\btests\.{folder}\b|\"{folder}[\"/]")
        case ("sample_models", *_):
            return {TESTS / "pipeline/test_samples.py"}
        case ("benchmarks", *_):
            return _using(rf"\b(from|import) {path.stem}\b|\"{path.stem}\b")
    return ABOUT_THE_PROJECT


def _of_module(path: PurePosixPath) -> set[Path]:
    room = TESTS / path.with_suffix("").parts[1]
    named = set(room.glob(f"test_{path.stem}*.py"))
    return named or ({room} if room.is_dir() else ABOUT_THE_PROJECT)


def _using(words: str) -> set[Path]:
    """The test files that have these words, and those that import a helper that does."""
    files = {file for file in TESTS.rglob("*.py") if re.search(words, file.read_text())}
    found = {file for file in files if file.name.startswith("test_")}
    for helper in files - found:
        if helper.parent.name == "support":
            found |= _using(rf"\btests\.support\.{helper.stem}\b")
    return found


def main() -> None:
    found = {test for file in changed() for test in covering(file)}
    there = {test for test in found if test.exists()}  # a test file may be what is gone
    for test in sorted(test for test in there if test.parent not in there):
        print(test.relative_to(ROOT).as_posix())


if __name__ == "__main__":
    main()
