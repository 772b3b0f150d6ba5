"""What a report depends on, from what its run read, and whether any of it changed."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from graphdoctor.check.cache.reads import OF_THE_MACHINE, Reads
from graphdoctor.values.locations import python_folders

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
        self._libraries = python_folders("purelib", "platlib")
        self._standard = python_folders("stdlib", "platstdlib")
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
        """Whether no other package has it."""
        return not self.is_library(path) and not self.is_known_by_version(path)

    def portable(self, path: str) -> str:
        """The path without the folders of this machine, if it is in a known one."""
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


# Read by native code, or before a run can be followed.
_ALWAYS = re.compile(
    r"(TORCH|PYTORCH|CUDA|CUBLAS|CUDNN|NCCL|NVIDIA|GLOO|OMP_|KMP_|MKL|OPENBLAS|GOMP_|ATEN|TRITON|XLA|HF_|HUGGINGFACE"
    r"|TRANSFORMERS|PYTHON|LD_LIBRARY_PATH|LD_PRELOAD|GRAPHDOCTOR_)"
)
# Of the shell, and no program's business.
_NEVER = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES", "PYTEST_CURRENT_TEST"})
_LITERAL = re.compile(r"""["']([^"'\n{}*?<>|]{1,200})["']""")
_LIKE_A_PATH = re.compile(r"/|\.\w{1,11}$")
_NATIVE = re.compile(
    r"\b(safetensors|safe_open|h5py|lmdb|pyarrow|read_parquet|decord|cv2|torchcodec|zarr)\b"
)
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npy", ".npz", ".gguf", ".h5")


class Folder(msgspec.Struct, frozen=True, array_like=True):
    """Names in a folder: of all that it holds, or of the modules in it that were looked for."""

    path: str
    names: tuple[str, ...]
    looked_for: tuple[str, ...] | None = None


class Variable(msgspec.Struct, frozen=True, array_like=True):
    """A variable of the environment, by the digest of its value: it may be a secret."""

    name: str
    digest: str  # "" where it is not set


class Dependencies(msgspec.Struct, frozen=True):
    """Everything that a report is known to depend on, besides versions and settings."""

    files: tuple[FileState, ...]
    folders: tuple[Folder, ...]
    variables: tuple[Variable, ...]
    has_all_variables: bool = False

    def are_as_before(self, files: Files) -> bool:
        """Whether an analysis would read the same again."""
        names = os.environ if self.has_all_variables else [one.name for one in self.variables]
        return (
            self.variables == _variables(names, os.environ)
            and all(map(files.is_as, self.files))
            and all(_folder(files.absolute(one.path), one.looked_for, files) == one
                    for one in self.folders)
        )  # fmt: skip


class CannotKeep(Exception):
    """The report must not be kept; the text says why, as a clause."""


def dependencies(reads: Reads, files: Files, *, since_ns: int) -> Dependencies:
    """What the reads found. `since_ns` is when the run began. Raises CannotKeep."""
    if reads.reason:
        raise CannotKeep(reads.reason)
    read = [path for path in reads.files if not _is_of_the_system(path, files)]
    others = {*_beside(read, files), *_written_out(read, files)}
    wanted = {*read, *(path for path in others if not _is_of_the_system(path, files))}
    for path in wanted:
        if not files.is_library(path) and files.has_changed_since(path, since_ns):
            raise CannotKeep(f"{os.path.basename(path)} changed while it ran")
    variables = os.environ if reads.reads_all_variables else reads.variables
    # Folders in which modules were looked for: a new file there may stand before the one imported.
    looked_into = [(path, None) for path in reads.folders] + [
        (one.folder, one.names) for one in reads.lookups
    ]
    return Dependencies(
        files=tuple(map(files.state, sorted(wanted))),
        folders=tuple(
            _folder(path, names, files) for path, names in looked_into if files.is_users(f"{path}/")
        ),
        variables=_variables(variables, os.environ),
        has_all_variables=reads.reads_all_variables,
    )


def environment_digest() -> str:
    """Of the variables that torch and what it is made of read."""
    found = ((name, os.environ[name]) for name in sorted(os.environ) if _ALWAYS.match(name))
    return _digest("\0".join(f"{name}={value}" for name, value in found))


def _is_of_the_system(path: str, files: Files) -> bool:
    """Python's own, graphdoctor's, or the machine's state, also by another name: /etc/mtab."""
    if files.is_known_by_version(path):
        return True
    return not files.is_library(path) and os.path.realpath(path).startswith(OF_THE_MACHINE)


def _folder(path: str, looked_for: tuple[str, ...] | None, files: Files) -> Folder:
    names = names_in(path) if looked_for is None else modules_in(path, looked_for)
    return Folder(files.portable(path), names, looked_for)


def _beside(read: Iterable[str], files: Files) -> Iterator[str]:
    """Weights beside a file that was read: native code opens them unseen."""
    folders = {os.path.dirname(path) for path in read if not path.endswith((".py", ".so"))}
    for folder in sorted(folders):
        if files.is_users(f"{folder}/"):
            yield from (f"{folder}/{name}" for name in names_in(folder) if name.endswith(_WEIGHTS))


def _written_out(read: Iterable[str], files: Files) -> Iterator[str]:
    """Paths that the user's own code has as text, there or not: it may ask for them unseen."""
    root = files.absolute("{project}/")
    for path in read:
        if not path.endswith(".py") or not files.is_users(path):
            continue
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        native = _NATIVE.search(text)
        if native:
            raise CannotKeep(
                f"{os.path.basename(path)} uses {native.group()}, which reads files unseen"
            )
        for literal in {*_LITERAL.findall(text)}:
            if _LIKE_A_PATH.search(literal) and "://" not in literal:
                for folder in (os.path.dirname(path), root):
                    yield os.path.normpath(os.path.join(folder, os.path.expanduser(literal)))


def _variables(names: Iterable[str], environ: Mapping[str, str]) -> tuple[Variable, ...]:
    return tuple(
        Variable(name, _digest(environ[name]) if name in environ else "")
        for name in sorted({*names} - _NEVER)
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
