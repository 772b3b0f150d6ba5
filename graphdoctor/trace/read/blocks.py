"""Read a trace file, plain or packed, or standard input in blocks of bounded size."""

from __future__ import annotations

import lzma
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

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


BLOCK_BYTES = 2 << 20
STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"
_SMALL_STEP = 256
_DAMAGE = (EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile)


class CutShort(Exception):
    """The compressed stream ended or broke before its end; what came before it is good."""


def check_memory(what: str, most_bytes: int | None, taken: int, events: str) -> None:
    """Raises UsageError if a trace takes more than it may; `events` is "after 1,000" or "for 1,000"."""
    if most_bytes is not None and taken > most_bytes:
        raise UsageError(
            f"The {what} takes more than {most_bytes >> 20:,} MB of memory ({taken >> 20:,} MB {events} events):"
            " record fewer steps, or allow more with --max-memory."
        )


def blocks(path: TracePath) -> Iterator[bytes]:
    """The content in order. Raises UsageError for what cannot be read, CutShort at a broken end."""
    try:
        if isinstance(path, RemotePath) or path.name.endswith(tuple(PACKED)):
            yield from _content(_by_fsspec(path))
        elif str(path) == STDIN:
            yield from _content(_read_in_blocks(sys.stdin.buffer))
        else:
            with path.open("rb") as file:
                yield from _content(_read_in_blocks(file))
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"Cannot read the trace {path}: {reason}.") from error


def until_cut(source: Iterable[bytes], name: str, tell: Callable[[str], None]) -> Iterator[bytes]:
    """The blocks up to where the packed file breaks off; `tell` is called with the reason.

    Raises UsageError where that is at its beginning.
    """
    block = None
    try:
        for block in source:
            yield block
    except CutShort as error:
        if block is None:
            raise UsageError(f"Nothing of the trace {name} can be unpacked: {error}.") from error
        tell(str(error))


def _by_fsspec(path: TracePath) -> Iterator[bytes]:
    url = path.url if isinstance(path, RemotePath) else str(path)
    packed = next((PACKED[ending] for ending in PACKED if path.name.endswith(ending)), None)
    options: dict[str, int] = {}
    if is_http(
        url
    ):  # some servers send a file only as a whole, from its beginning; zip is read from its end
        url, options = (f"simplecache::{url}", {}) if packed == "zip" else (url, {"block_size": 0})
    block = None
    try:
        with using_fsspec(path, *_DAMAGE) as fsspec:
            if packed not in fsspec.available_compressions():
                raise ImportError(f"nothing that is installed unpacks {packed}")
            with fsspec.open(url, "rb", compression=packed, **options) as file:
                # A whole block of what is packed would lose what can be unpacked before damage.
                unpacked = iter(lambda: file.read1(BLOCK_BYTES), b"")
                for block in unpacked if packed else _read_in_blocks(file):
                    yield block
    except _DAMAGE as error:
        raise CutShort(f"it is damaged ({error})") from error
    except UsageError as error:
        if block is None:
            raise
        raise CutShort(reason_of(error.__cause__)) from error


def _read_in_blocks(file: BinaryIO) -> Iterator[bytes]:
    """One buffer for all: each block holds until the next one is asked for."""
    buffer = bytearray(BLOCK_BYTES)
    while length := file.readinto(buffer):  # type: ignore[attr-defined]
        yield memoryview(buffer)[:length]  # type: ignore[misc]


def _content(source: Iterator[bytes]) -> Iterator[bytes]:
    first = bytes(next(source, b""))
    while 0 < len(first) < len(_GZIP_MAGIC) and (more := next(source, b"")):
        first += more
    if first.startswith(_GZIP_MAGIC):
        yield from _unpacked(first, source)
        return
    yield first
    yield from source


def _unpacked(packed: bytes, source: Iterator[bytes]) -> Iterator[bytes]:
    """Several gzip members in a row are one content; a member that does not end is CutShort."""
    stream = zlib.decompressobj(wbits=31)
    while packed:
        before = stream.copy()
        try:
            block = stream.decompress(packed, BLOCK_BYTES)
        except zlib.error as error:
            yield from _until_broken(before, packed)
            raise CutShort(f"it is damaged ({error})") from error
        if block:
            yield block
        packed = stream.unconsumed_tail
        if stream.eof:
            packed = stream.unused_data or bytes(next(source, b""))
            if not packed.startswith(_GZIP_MAGIC):
                return  # padding after the last member
            stream = zlib.decompressobj(wbits=31)
        elif not packed:
            packed = next(source, b"")
    raise CutShort("the gzip stream does not end")


def _until_broken(stream: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """What can be unpacked before the place that is damaged, in smaller and smaller steps."""
    at, step = 0, _SMALL_STEP
    while at < len(packed):
        before = stream.copy()
        try:
            block = stream.decompress(packed[at : at + step])
        except zlib.error:
            if step == 1:
                return
            stream, step = before, 1
            continue
        if block:
            yield block
        at += step
