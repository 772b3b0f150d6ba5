"""A file that is read, or written whole or not at all; a sentence where that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

from graphdoctor.values.errors import UsageError


def check_writable(path: Path) -> None:
    """Raise UsageError if a file cannot be made there: before the work, not after it."""
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder, expected a file name")
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"cannot write {path}: no permission")


def read(path: Path, what: str = "the report ") -> bytes:
    """A file's content. Raises UsageError, which says `what` it is."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {what}{path}: {error.strerror or error}") from error


def save(text: str, path: Path) -> None:
    """Write a file, whole or not at all."""
    import tempfile  # not before something is written: --help is to be quick

    content = text.encode("utf-8")
    try:
        if path.exists() and not path.is_file():  # a pipe or a device: nothing to replace
            path.write_bytes(content)
            return
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as part:
            part.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part.name, 0o666 & ~mask)
        os.replace(part.name, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
