"""What has changed since main -> the tests to run for it, a path a line: `make test-fast`.

A module's tests are those of its room, the files named after it first; a test file that has changed is run
itself, and so is what imports a changed helper. What would take longer than a minute is left out, the
farthest first; how long a file takes is what it took here the last time. `make test` runs all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
ABOUT_THE_PROJECT = {TESTS / "docs/test_docs.py", TESTS / "docs/test_architecture.py"}
SECONDS = "graphdoctor/seconds"  # of each test, in pytest's cache: tests/conftest.py writes it
MOST_S = 50.0  # of the minute, without the start of pytest
UNKNOWN_S = 4.0  # what a file takes on average

Near = dict[Path, int]  # a test file, and how far it is from the change


def changed() -> set[str]:
    """Files that differ from where the branch left main (on main: from the commit before), and new ones."""
    branch, main = (_git("rev-parse", "--verify", "--quiet", name) for name in ("HEAD", "main"))
    since = _git("merge-base", "HEAD", "main") if main and main != branch else ["HEAD~1"]
    new = _git("ls-files", "--others", "--exclude-standard")
    return {*_git("diff", "--name-only", *since), *new}


def _git(*arguments: str) -> list[str]:
    command = ("git", "-C", str(ROOT), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def covering(file: str) -> Near:
    """The test files for a file that has changed."""
    path = PurePosixPath(file)
    match path.parts:
        case ("graphdoctor", *_):
            return _of_module(path)
        case ("tests", "support", *_):
            found = _using(rf"\btests\.support\.{path.stem}\b|support import .*\b{path.stem}\b")
        case ("tests", _, *_, name) if name.startswith("test_"):
            return {ROOT / path: 0}
        case ("tests", folder, *_):
            found = _using(rf"\btests\.{folder}\b|\"{folder}[\"/]")
        case ("sample_models", *_):
            found = {TESTS / "pipeline/test_samples.py"}
        case ("benchmarks", *_):
            found = _using(rf"\b(from|import) {path.stem}\b|\"{path.stem}\b")
        case _:
            found = ABOUT_THE_PROJECT
    return dict.fromkeys(found, 1)


def _of_module(path: PurePosixPath) -> Near:
    room = TESTS / path.with_suffix("").parts[1]
    of_room = {file: 2 for file in room.rglob("test_*.py")}
    named = {file: 0 for file in room.rglob(f"test_{path.stem}*.py")}
    return {**of_room, **named} or dict.fromkeys(ABOUT_THE_PROJECT, 1)


def _using(words: str) -> set[Path]:
    """The test files that have these words, and those that import a helper that does."""
    files = {file for file in TESTS.rglob("*.py") if re.search(words, file.read_text())}
    found = {file for file in files if file.name.startswith("test_")}
    for helper in files - found:
        if helper.parent.name == "support":
            found |= _using(rf"\btests\.support\.{helper.stem}\b")
    return found


def chosen(
    near: Near, seconds: Mapping[Path, float], most_s: float
) -> tuple[list[Path], list[Path]]:
    """The nearest that take no longer together, one at least, and what is left out."""
    taken: list[Path] = []
    left: list[Path] = []
    for file in sorted(near, key=lambda file: (near[file], seconds.get(file, UNKNOWN_S), file)):
        most_s -= seconds.get(file, UNKNOWN_S)
        (taken if most_s >= 0 or not taken else left).append(file)
    return taken, left


def _seconds() -> Counter[Path]:
    took: Counter[Path] = Counter()
    record = ROOT / ".pytest_cache" / "v" / SECONDS
    if record.is_file():
        for test, seconds in json.loads(record.read_text()).items():
            took[ROOT / test.partition("::")[0]] += seconds
    return took


def main() -> None:
    near: Near = {}
    for file in changed():
        for test, distance in covering(file).items():
            if test.exists():  # a test file may be what is gone
                near[test] = min(distance, near.get(test, distance))
    at_once = min(os.cpu_count() or 1, 8)
    taken, left = chosen(near, _seconds(), MOST_S * at_once)
    for test in sorted(taken):
        print(test.relative_to(ROOT).as_posix())
    if left:
        rooms = Counter(test.relative_to(TESTS).parts[0] for test in left)
        names = ", ".join(f"{room} ({count})" for room, count in sorted(rooms.items()))
        print(f"left out, since a minute is over before: test files of {names}", file=sys.stderr)


if __name__ == "__main__":
    main()
