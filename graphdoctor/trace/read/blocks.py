"""A trace file, plain or gzip, in; its content in blocks of bounded size out."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from graphdoctor.values.errors import UsageError

BLOCK_BYTES = 16 << 20
_GZIP_MAGIC = b"\x1f\x8b"


class CutShort(Exception):
    """The compressed stream ended or broke before its end; what came before it is good."""


def blocks(path: Path) -> Iterator[bytes]:
    """The content in order. Raises UsageError for what cannot be read, CutShort at a broken end."""
    try:
        with path.open("rb") as file:
            first = file.read(BLOCK_BYTES)
            if not first.startswith(_GZIP_MAGIC):
                yield first
                while block := file.read(BLOCK_BYTES):
                    yield block
                return
            yield from _unpacked(first, file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"Cannot read the trace {path}: {reason}.") from error


def _unpacked(packed: bytes, file: object) -> Iterator[bytes]:
    """Several gzip members in a row are one content; a member that does not end is CutShort."""
    stream = zlib.decompressobj(wbits=31)
    while packed:
        try:
            block = stream.decompress(packed, BLOCK_BYTES)
        except zlib.error as error:
            raise CutShort(str(error)) from error
        if block:
            yield block
        packed = stream.unconsumed_tail
        if stream.eof:
            packed = stream.unused_data or file.read(BLOCK_BYTES)  # type: ignore[attr-defined]
            if not packed.startswith(_GZIP_MAGIC):
                return  # padding after the last member
            stream = zlib.decompressobj(wbits=31)
        elif not packed:
            packed = file.read(BLOCK_BYTES)  # type: ignore[attr-defined]
    raise CutShort("the gzip stream does not end")
