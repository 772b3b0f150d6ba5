"""Select the targets that a change touches, by git and imports, or one machine's share of all targets."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from graphdoctor.check.cache.dependencies import Dependencies
from graphdoctor.check.cache.kept import Cache
from graphdoctor.check.relative_paths import RelativePaths
from graphdoctor.check.run_targets import cache_key
from graphdoctor.check.settings.files import OWN_FILE, Project
from graphdoctor.check.settings.settings import TargetSettings
from graphdoctor.values.check import Shard
from graphdoctor.values.errors import UsageError

# What imports by a name that is known only when it runs.
_DYNAMIC = frozenset({"import_module", "__import__", "exec", "eval", "runpy", "load_module",
                      "spec_from_file_location", "entry_points", "iter_modules"})  # fmt: skip


class Imports:
    """The Python files of a repository, by their names.

    A module may lie below any folder, since it is not known which of them will be on the search path:
    `a.b` is every `a/b.py` and `a/b/__init__.py` there is, so that rather too many are found.
    """

    def __init__(self, files: Iterable[Path], repository: Path) -> None:
        self._repository = repository
        self._by_name: dict[str, list[tuple[tuple[str, ...], Path]]] = {}
        for path in files:
            parts = path.with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if parts:
                self._by_name.setdefault(parts[-1], []).append((parts, path))
        self._direct: dict[Path, frozenset[Path] | None] = {}

    def reached_from(self, path: Path) -> frozenset[Path] | None:
        """The file and all that it may import, one after the other; None where that cannot be known."""
        reached: set[Path] = set()
        waiting = [path]
        while waiting:
            one = waiting.pop()
            if one in reached:
                continue
            if one not in self._direct:
                self._direct[one] = self._read(one)
            direct = self._direct[one]
            if direct is None:
                return None
            reached.add(one)
            waiting += direct
        return frozenset(reached)

    def named(self, module: str) -> frozenset[Path]:
        """The files that a module of this name may be, and the packages that it lies in."""
        parts = tuple(module.split("."))
        found = (self._ending_in(parts[:count]) for count in range(1, len(parts) + 1))
        return frozenset(path for files in found for path in files)

    def _is_under_another_name(self, module: str) -> bool:
        """Whether a package is installed from the repository, and its folder is not called so."""
        top = module.partition(".")[0]
        return top not in self._by_name and self._repository in _folders_of(top)

    def _ending_in(self, parts: tuple[str, ...]) -> Iterator[Path]:
        for known, path in self._by_name.get(parts[-1], ()):
            if known[-len(parts) :] == parts:
                yield path

    def _read(self, path: Path) -> frozenset[Path] | None:
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None
        nodes = list(ast.walk(tree))
        if any(_is_dynamic(node) for node in nodes):
            return None
        names = {name for node in nodes for name in _names(node, path)}
        if any(map(self._is_under_another_name, names)):
            return None
        return frozenset(file for name in names for file in self.named(name))


@cache
def _folders_of(top: str) -> frozenset[Path]:
    """Where a package that is installed lies, and all folders above; none of what is not there."""
    try:
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return frozenset()
    if spec is None:
        return frozenset()
    places = [
        Path(place).resolve()
        for place in (spec.origin, *(spec.submodule_search_locations or ()))
        if place
    ]
    return frozenset(folder for place in places for folder in place.parents)


def _is_dynamic(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
    imported = isinstance(node, ast.alias) and node.name.rpartition(".")[2] in _DYNAMIC
    is_model_eval = isinstance(node, ast.Attribute) and name == "eval"  # model.eval()
    return imported or (name in _DYNAMIC and not is_model_eval)


def _names(node: ast.AST, path: Path) -> Iterator[str]:
    """Dotted names of modules, each of which may be an attribute of one as well."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = path.parent.parts[-1:] if node.level == 1 else ()
        if node.level > 1:
            above = path.parents[node.level - 1].parts[-1:]
        module = ".".join((*above, *((node.module,) if node.module else ())))
        if module:
            yield module
        yield from (f"{module}.{alias.name}" if module else alias.name for alias in node.names)


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
        if self._cache is not None:
            # What the last run read, as long as another would read the same.
            entry = self._cache.valid_entry(target.name, cache_key(target, self._project))
            if entry is not None:
                known = entry.depends_on
                read = {self._cache.files.absolute(one.path) for one in known.files}
                return self._has_any(read) or self._is_in_folder(known, self._cache)
        if self._has_data:
            return True  # which files it reads shows when it runs
        return self._may_import_any(target)

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


def changed_since(ref: str, folder: Path) -> frozenset[Path]:
    """Files of the repository around `folder` that differ from where this branch left `ref`.

    Also those that are not committed, and not yet known to git. A submodule that moved or has
    changes is its folder. Raises UsageError.
    """
    top = Path(_git(folder, "rev-parse", "--show-toplevel").rstrip("\n"))
    base = _base(ref, top)
    differing = _git(top, "diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", base, "--")
    unknown = _git(top, "ls-files", "--others", "--exclude-standard", "-z")
    names = filter(None, (*differing.split("\0"), *unknown.split("\0")))
    return frozenset(top / name for name in names)


def python_files_of(folder: Path) -> list[Path]:
    """The Python files of the repository around `folder`, and of its submodules. Raises UsageError."""
    top = Path(_git(folder, "rev-parse", "--show-toplevel").rstrip("\n"))
    listed = ("ls-files", "-z", "--recurse-submodules", "*.py")
    unknown = ("ls-files", "-z", "--others", "--exclude-standard", "*.py")
    names = {name for which in (listed, unknown) for name in _git(top, *which).split("\0")}
    return [top / name for name in sorted(names) if name]


def _base(ref: str, top: Path) -> str:
    if ref.startswith("-"):
        raise UsageError(f"--changed: {ref!r} is no commit")
    try:
        commit = _git(top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}").strip()
    except UsageError:
        hint = f"; to check it alone, write --changed=HEAD {ref}" if Path(ref).exists() else ""
        raise UsageError(
            f"--changed: git knows no commit {ref!r} here: fetch it, or name another{hint}"
        ) from None
    try:
        return _git(top, "merge-base", commit, "HEAD").strip()
    except UsageError:
        raise UsageError(
            f"--changed: {ref} and HEAD have no common commit in this clone: fetch more of the"
            " history (`git fetch --unshallow`; on GitHub `fetch-depth: 0` of actions/checkout)"
        ) from None


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotepath=off", *arguments],
            cwd=folder,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("--changed needs git, and finds none on PATH") from None
    if done.returncode:
        said = os.fsdecode(done.stderr).strip().splitlines()
        raise UsageError(f"--changed: git says: {said[-1] if said else 'nothing'}")
    return os.fsdecode(done.stdout)
