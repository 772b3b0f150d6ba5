"""The contents of files and folders in a form that another checkout can compare."""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from pathlib import Path

import msgspec

_LARGE_BYTES = 64 * 2**20  # larger files are known by size and time, as make knows them
_LIBRARIES, _PROJECT = "{libraries}/", "{project}/"
_OWN_NOISE = frozenset({"__pycache__", ".git", ".graphdoctor_cache"})


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """A file, by what is in it; without `digest` there is none. Its times are in ns."""

    path: str  # as `Files.portable` writes it
    size: int = 0
    modified_ns: int = 0
    digest: str = ""


class Files:
    """Files as they are now, each looked at once. `root` is the project's folder."""

    def __init__(self, root: Path) -> None:
        self._states: dict[str, FileState] = {}
        paths = sysconfig.get_paths()
        libraries = {paths["purelib"], paths["platlib"]}
        libraries |= {os.path.realpath(folder) for folder in libraries}
        standard = {paths["stdlib"], paths["platstdlib"]}
        standard |= {os.path.realpath(folder) for folder in standard}
        self._libraries = tuple(folder + os.sep for folder in sorted(libraries))
        self._standard = tuple(folder + os.sep for folder in sorted(standard))
        self._own = f"{Path(__file__).resolve().parents[2]}{os.sep}"
        self._root = str(root.resolve()).rstrip(os.sep) + os.sep

    def is_library(self, path: str) -> bool:
        """Whether an installed package has it."""
        return path.startswith(self._libraries)

    def is_known_by_version(self, path: str) -> bool:
        """Whether it belongs to Python itself or to graphdoctor."""
        is_python = path.startswith(self._standard) and not self.is_library(path)
        return is_python or path.startswith(self._own)

    def is_users(self, path: str) -> bool:
        """Whether it belongs to nobody else."""
        return not self.is_library(path) and not self.is_known_by_version(path)

    def portable(self, path: str) -> str:
        """The path without the folders of this machine, where it lies in one that is known."""
        for folder in self._libraries:
            if path.startswith(folder):
                return _LIBRARIES + path[len(folder) :]
        if f"{path}/" == self._root:
            return _PROJECT
        return _PROJECT + path[len(self._root) :] if path.startswith(self._root) else path

    def absolute(self, portable: str) -> str:
        """What `portable` was made of."""
        if portable.startswith(_LIBRARIES):
            return self._libraries[0] + portable[len(_LIBRARIES) :]
        return portable.replace(_PROJECT, self._root, 1)

    def state(self, path: str) -> FileState:
        """With its content's digest."""
        known = self._states.get(path)
        if known is None:
            known = self._states[path] = self._read(path)
        return known

    def is_as(self, recorded: FileState) -> bool:
        """Whether it is now what it was. An installed file of the same size and time is not read."""
        path = self.absolute(recorded.path)
        known = self._states.get(path)
        if known is not None or not self.is_library(path):
            return self.state(path).digest == recorded.digest
        try:
            found = os.stat(path)
        except OSError:
            return not recorded.digest
        if found.st_size == recorded.size and found.st_mtime_ns == recorded.modified_ns:
            self._states[path] = recorded
            return True
        return found.st_size == recorded.size and self.state(path).digest == recorded.digest

    def has_changed_since(self, path: str, time_ns: int) -> bool:
        """Whether anything was done to it since, whatever times it was given."""
        try:
            return os.stat(path).st_ctime_ns >= time_ns
        except OSError:
            return False

    def _read(self, path: str) -> FileState:
        name = self.portable(path)
        try:
            found = os.stat(path)
            if stat.S_ISDIR(found.st_mode):
                return FileState(name, digest="a folder")
            if not stat.S_ISREG(found.st_mode):
                return FileState(name, digest="no plain file")
            size, modified_ns = found.st_size, found.st_mtime_ns
            if size > _LARGE_BYTES:
                return FileState(name, size, modified_ns, f"{size} bytes of {modified_ns}")
            digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError:
            return FileState(name)
        return FileState(name, size, modified_ns, digest)


def names_in(folder: str) -> tuple[str, ...]:
    """What a folder holds, without what caches leave there; nothing where there is none."""
    try:
        return tuple(sorted(set(os.listdir(folder)) - _OWN_NOISE))
    except OSError:
        return ()


def modules_in(folder: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Which of these names a search for modules finds something under, in that folder."""
    found = {entry.partition(".")[0] for entry in names_in(folder)}
    return tuple(name for name in names if name in found)
