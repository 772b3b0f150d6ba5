"""What a report depends on, from what its run read, and whether any of it changed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from graphdoctor.check.cache.contents import Files, FileState, modules_in, names_in
from graphdoctor.check.cache.reads import OF_THE_MACHINE, Lookup, Reads

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
    names = os.environ if reads.reads_all_variables else reads.variables
    folders = (_folder(path, None, files) for path in reads.folders if files.is_users(f"{path}/"))
    return Dependencies(
        files=tuple(map(files.state, sorted(wanted))),
        folders=(*folders, *_lookups(reads.lookups, files)),
        variables=_variables(names, os.environ),
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


def _lookups(lookups: Iterable[Lookup], files: Files) -> Iterator[Folder]:
    """A new file beside a target may stand before the module that it imports."""
    for one in lookups:
        if files.is_users(f"{one.folder}/"):
            yield _folder(one.folder, one.names, files)


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
