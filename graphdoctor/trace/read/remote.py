"""Where traces lie: files of this machine, and what fsspec reads, which is imported when the first such file is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphdoctor.values.errors import UsageError

# By the ending of a file, what fsspec unpacks.
PACKED = {".json.xz": "xz", ".json.zst": "zstd", ".json.zip": "zip"}
ENDINGS = (".json", ".json.gz", ".sqlite", *PACKED)
_SECRETS = re.compile(r"(https?://)(?:[^/@\s]*@)?([^?\s'\"]*)(\?[^\s'\":]*)?")


@dataclass(frozen=True, slots=True)
class RemotePath:
    """What lies behind a URL, with as much of pathlib's interface as traces are read by.

    A URL that does not end as traces do is a folder: many servers can only tell by sending the whole file.
    """

    url: str
    size_bytes: int = field(default=0, compare=False)  # where a folder told it

    def __str__(self) -> str:
        """The URL as reports may have it: without a password or the signature of a link, and as the user gave it."""
        return _without_secrets(self.url).replace("simplecache::", "").removeprefix("zip://::")

    @property
    def name(self) -> str:
        return str(self).partition("::")[0].rpartition("/")[2]

    def with_name(self, name: str) -> RemotePath:
        inner, colons, outer = self.url.partition("::")
        return RemotePath(f"{inner.rpartition('/')[0]}/{name}{colons}{outer}")

    def is_dir(self) -> bool:
        return not self.name.endswith(ENDINGS)

    def exists(self) -> bool:
        """Always: reading it says why it cannot be read."""
        return True

    def is_fifo(self) -> bool:
        return False

    def files(self) -> list[RemotePath]:
        """Every file below the folder. Raises UsageError where it cannot be listed."""
        inner, colons, outer = self.url.partition("::")
        scheme = inner.partition("://")[0]
        with using_fsspec(self) as fsspec:
            system, root = fsspec.core.url_to_fs(self.url)
            return [
                RemotePath(
                    f"{scheme}://{name}{colons}{outer}"
                    if colons
                    else system.unstrip_protocol(name),
                    about.get("size") or 0,
                )
                for name, about in system.find(root, detail=True).items()
            ]
        raise AssertionError  # using_fsspec lets no error pass


TracePath = Path | RemotePath


def place(text: str) -> TracePath:
    """The file or folder of this machine, or behind the URL; a zip file is a folder."""
    path = RemotePath(text) if "://" in text else Path(text)
    if not path.name.endswith(".zip") or path.name.endswith(tuple(PACKED)):
        return path
    # A zip file is read from its end, and some servers send a file only from its beginning.
    return RemotePath(f"zip://::{'simplecache::' if is_http(text) else ''}{text}")


def is_http(url: str) -> bool:
    """Whether the file comes from a web server."""
    return url.startswith(("http://", "https://"))


@contextmanager
def using_fsspec(path: TracePath, *passing: type[Exception]) -> Iterator[Any]:
    """Give fsspec; its errors, but for those that are `passing`, become one UsageError about this file or folder."""
    try:
        import fsspec.core

        yield fsspec
    except passing:
        raise
    except Exception as error:  # each file system has errors of its own
        reason = reason_of(error)
        if isinstance(error, FileNotFoundError) and error.__cause__ is None:
            reason = "it is not there, or its server does not answer"  # some file systems say no more than the URL
        raise UsageError(
            f"Cannot read {path} with what is installed: pip install 'graphdoctor[cluster]' ({reason})."
            if isinstance(error, ImportError)
            else f"Cannot read the trace {path}: {reason}."
        ) from error


def reason_of(error: BaseException | None) -> str:
    """What a file system's error says, in one line without secrets."""
    said = " ".join(str((error and error.__cause__) or error).split())
    return _without_secrets(said).rstrip(".") or type(error).__name__


def _without_secrets(text: str) -> str:
    return _SECRETS.sub(r"\1\2", text)
