"""A commit -> the files that differ from it, as git tells."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from graphdoctor.values.errors import UsageError


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
