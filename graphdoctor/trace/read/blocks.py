"""Read a trace file, plain or packed, or standard input in blocks of bounded size."""

from __future__ import annotations

import lzma
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from graphdoctor.trace.read.remote import (
    PACKED,
    RemotePath,
    TracePath,
    is_http,
    reason_of,
    using_fsspec,
)
from graphdoctor.values.errors import UsageError

BLOCK_BYTES = 2 << 20
STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"
_SMALL_STEP = 256
_DAMAGE = (EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile)


class CutShort(Exception):
    """The compressed stream ended or broke before its end; what came before it is good."""


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
