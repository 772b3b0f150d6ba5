"""Files and other text for them -> a program that imports the text, as if it stood in the files."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType


class _Loader(importlib.abc.SourceLoader):
    """Neither reads nor writes compiled files, since it knows no time of the source."""

    def __init__(self, name: str, file: str, text: str) -> None:
        self._name, self._file, self._text = name, file, text

    def get_filename(self, fullname: str) -> str:
        return self._file

    def get_data(self, path: str | bytes) -> bytes:
        if path != self._file:
            raise OSError(f"{path!r} is not {self._file}")
        return self._text.encode()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        file = found.origin if found is not None else None
        if found is None or file is None or file not in self._sources:
            return None
        found.loader = _Loader(fullname, file, self._sources[file])
        return found


@contextmanager
def instead_of(sources: Mapping[str, str]) -> Iterator[None]:
    """In the block, modules of these files are made from other text; their names and paths stay."""
    finder = _Finder(sources)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
