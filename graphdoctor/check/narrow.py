"""All targets -> those that a change touches, or one machine's share of them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from graphdoctor.check.cache.dependencies import Dependencies
from graphdoctor.check.cache.kept import Cache
from graphdoctor.check.changed_files import changed_since, python_files_of
from graphdoctor.check.imports import Imports
from graphdoctor.check.relative_paths import RelativePaths
from graphdoctor.check.run_targets import cache_key
from graphdoctor.check.settings.files import OWN_FILE, Project
from graphdoctor.check.settings.settings import TargetSettings
from graphdoctor.values.check import Shard

# What changes any target: what is installed, and what the check itself goes by.
_FOR_ALL = ("pyproject.toml", "setup.py", "setup.cfg", "*requirements*.txt", "*constraints*.txt", "*.lock",
            "environment.y*ml", ".gitmodules", OWN_FILE)  # fmt: skip
_PROSE = (".md", ".rst")


def shard_of(targets: Sequence[TargetSettings], number: int, count: int) -> Shard:
    """Which share it is, and of what: shares of other targets do not make a whole."""
    names = "\0".join(sorted(target.name for target in targets))
    digest = hashlib.sha256(names.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return Shard(number, count, digest)


def share(targets: Sequence[TargetSettings], shard: Shard) -> list[TargetSettings]:
    """Every `count`-th target; each is in one share, whichever machine counts."""
    ordered = sorted(targets, key=lambda target: target.name)
    mine = {target.name for target in ordered[shard.number - 1 :: shard.count]}
    return [target for target in targets if target.name in mine]


@dataclass(frozen=True, slots=True)
class Touched:
    """The targets that a change touches, and how many files it changed."""

    targets: tuple[TargetSettings, ...]
    files: int


def touched_since(
    ref: str, targets: Sequence[TargetSettings], project: Project, cache: Cache | None
) -> Touched:
    """The targets that read a file which differs from `ref`; one of which that is not known, too.

    Raises UsageError.
    """
    changed = changed_since(ref, project.root)
    if not changed:
        return Touched((), 0)
    if any(_is_for_all(path, project) for path in changed):
        return Touched(tuple(targets), len(changed))
    judge = _Judge(changed, project, cache)
    return Touched(tuple(filter(judge.is_touched, targets)), len(changed))


def _is_for_all(path: Path, project: Project) -> bool:
    is_baseline = path == project.baseline_path.resolve()
    is_ours = path.is_relative_to(Path(__file__).resolve().parents[1])  # under development
    return is_baseline or is_ours or any(fnmatch(path.name, pattern) for pattern in _FOR_ALL)


class _Judge:
    """Whether a target reads any of some files: by what its last run read, else by its imports."""

    def __init__(self, changed: Collection[Path], project: Project, cache: Cache | None) -> None:
        self._changed = changed
        self._names = {str(path) for path in changed}
        self._project, self._cache = project, cache
        repository = RelativePaths(project.root).repository
        self._has_data = any(_may_be_data(path, repository) for path in changed)
        files = (path.resolve() for path in python_files_of(project.root))
        self._imports = Imports(files, repository)

    def is_touched(self, target: TargetSettings) -> bool:
        known = self._known(target)
        if known is not None and self._cache is not None:
            read = {self._cache.files.absolute(one.path) for one in known.files}
            return self._has_any(read) or self._is_in_folder(known, self._cache)
        if self._has_data:
            return True  # which files it reads shows when it runs
        return self._may_import_any(target)

    def _known(self, target: TargetSettings) -> Dependencies | None:
        """What the last run read, as long as another would read the same."""
        if self._cache is None:
            return None
        entry = self._cache.valid_entry(target.name, cache_key(target, self._project))
        return entry.depends_on if entry is not None else None

    def _may_import_any(self, target: TargetSettings) -> bool:
        if target.file:
            starts = frozenset({(self._project.root / target.file).resolve()})
        else:
            starts = self._imports.named(target.entry.partition(":")[0])
        found = [self._imports.reached_from(start) for start in starts]
        if not found or None in found:
            return True
        return any(self._has_any({str(path) for path in one or ()}) for one in found)

    def _has_any(self, read: Collection[str]) -> bool:
        if not self._names.isdisjoint(read):
            return True
        submodules = [f"{path}/" for path in self._changed if path.is_dir()]
        return any(path.startswith(folder) for folder in submodules for path in read)

    def _is_in_folder(self, known: Dependencies, cache: Cache) -> bool:
        """A file that came or went where the run listed a folder, or looked for a module."""
        for folder in known.folders:
            path = Path(cache.files.absolute(folder.path))
            for one in self._changed:
                name = one.name.partition(".")[0]
                if one.parent == path and (folder.looked_for is None or name in folder.looked_for):
                    return True
        return False


def _may_be_data(path: Path, repository: Path) -> bool:
    """Neither Python, nor prose, nor of a tool in a hidden folder; a submodule is looked at on its own."""
    parts = path.relative_to(repository).parts if path.is_relative_to(repository) else path.parts
    is_hidden = any(part.startswith(".") for part in parts)
    return not (path.suffix == ".py" or path.suffix in _PROSE or is_hidden or path.is_dir())
