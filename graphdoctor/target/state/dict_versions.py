"""Whether dictionaries that hold state may have been written to, without reading them.

CPython counts, or reports, each write into a dictionary, and torch hands that on as a version. A
dictionary of the version that it was found equal at is equal still; one of another version has to be
compared, since it may have got the same value again. Where writes into all of them are numbered together
(`dict_writes.py`), nothing is asked of each until there was one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch

from graphdoctor.target.state.cpp_guards import (
    Check,
    add_guard,
    guards_of,
    has_imported_dynamo,
)

# Since Python 3.12 torch watches the dictionaries whose versions it is asked for, and numbers the writes into them
# one after the other, whichever it is. So a write into a dictionary of ours has the next number where nothing else
# was written to. Before, Python numbers the writes into all dictionaries there are, and one comes with nearly every
# call.

Version = Callable[[dict[Any, Any]], int]
_NO_SMALL_INTEGER = 1_000  # those are one object each


def write_counter(version: Version) -> Callable[[], int]:
    """A function whose answer is another one after each write into a dictionary whose version was asked for.

    It may be another one after none. Two threads may ask at once: whichever comes second finds a gap.
    """
    own = {"written": 0}
    last = found = version(own)

    def writes() -> int:
        nonlocal last, found
        own["written"] = last + _NO_SMALL_INTEGER  # always a new object: the same one is no write
        now = version(own)
        if now != last + 1:
            found = now
        last = now
        return found

    return writes


@cache
def shared_counter(version: Version) -> Callable[[], int] | None:
    """The process's own, since each counter's writes are news to any other; None where this Python has none."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None  # two writes at a time may get one number
    counter = write_counter(version)
    return counter if _tells(counter, version) else None


def _tells(counter: Callable[[], int], version: Version) -> bool:
    """Whether it rests while nothing watched is written to, and notices what is."""
    watched: dict[str, int] = {"one": 1}
    version(watched)
    before = counter()
    unwatched: dict[str, int] = {}
    for number in range(3):
        unwatched[str(number)] = number
        if counter() != before:
            return False
    writes = (lambda: watched.update(one=2), lambda: watched.setdefault("two", 2), watched.clear)
    for write in writes:
        write()
        before, now = counter(), before
        if now == before:
            return False
    return counter() == before


# Dictionaries from which on guards in C++ are worth the import of torch._dynamo, 1 to 2 s; and where it was imported.
_MANY = 64
_FEW = 4
_CALM = 64  # looks in a row that must find no write before guards are made anew, which takes 1 ms


class DictVersions:
    """Plain dictionaries that equal what was saved of them now, as `compare` tells at any time.

    Empty ones have no place here: since Python 3.12 filling one from another goes unreported. `check` may
    be another one after each look; `written` is the count of all writes when these were last found equal.
    """

    def __init__(self, dicts: Iterable[dict[Any, Any]], compare: Callable[[], bool]) -> None:
        self._dicts = tuple(dicts)
        self._compare = compare
        self._version = version_function()
        self._count = shared_counter(self._version) if self._version is not None else None
        self.written = self._count() if self._count is not None else 0
        self._versions = self._now()
        may_import = self._count is None  # with a count, each is asked too seldom for that to pay
        self.check = (
            _check_of(self._dicts, may_import=may_import) if self._version is not None else None
        )
        self._calm = 0
        self._calm_wanted = _CALM

    def checker(self) -> Callable[[], bool]:
        """A function that returns whether each still equals what was saved; it may raise what `compare` raises."""
        version, count, dicts, versions = self._version, self._count, self._dicts, self._versions
        if version is None:
            return self._compare
        if count is not None:
            look_again = self._look_again
            return lambda: count() == self.written or look_again()
        look = self._look
        if self.check is not None:
            return lambda: (self.check is not None and self.check(dicts)) or look()
        return lambda: [*map(version, dicts)] == versions or look()

    def _look_again(self) -> bool:
        """Something that is watched was written to, anywhere in the process."""
        assert self._count is not None
        written = self._count()  # before the look, lest a write in between be taken for seen
        if not (self.check is not None and self.check(self._dicts)) and not self._look():
            return False
        self.written = written
        return True

    def _look(self) -> bool:
        now = self._now()  # before the comparison, lest a write in between be taken for seen
        if now == self._versions:
            self._calmed()
            return True
        self._calm = 0
        if not self._compare():
            return False
        self._versions[:] = now
        return True

    def _calmed(self) -> None:
        """Make the guards anew once writes have ceased; ever more rarely, should they go on."""
        if self.check is None:
            return
        self._calm += 1
        if self._calm >= self._calm_wanted:
            self._calm, self._calm_wanted = 0, 2 * self._calm_wanted
            made = _check_of(self._dicts, may_import=False)
            # Versions were as saved before the guards were made, and are to be so after.
            self.check = made if self._now() == self._versions else self.check

    def _now(self) -> list[int]:
        return list(map(self._version, self._dicts)) if self._version is not None else []


def version_function() -> Callable[[dict[Any, Any]], int] | None:
    """torch's, where it exists and notices every kind of write."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    version = getattr(guards, "dict_version", None)
    try:
        return version if version is not None and _notices_writes(version) else None
    except Exception:
        return None


def _notices_writes(version: Callable[[dict[Any, Any]], int]) -> bool:
    module: Any = torch.nn.Module()
    plain: dict[Any, Any] = {"kept": 1, "gone": 2}
    own = module.__dict__
    writes: tuple[tuple[dict[Any, Any], Callable[[], object]], ...] = (
        (own, lambda: setattr(module, "training", False)),
        (own, lambda: setattr(module, "new", 1)),
        (own, lambda: delattr(module, "new")),
        (own, lambda: own.update(training=True)),
        (plain, lambda: plain.__setitem__("kept", 3)),
        (plain, lambda: plain.setdefault("more", 3)),
        (plain, lambda: plain.pop("gone")),
        (plain, lambda: plain.update({"kept": 4})),
        (plain, lambda: plain.__ior__({"kept": 5})),
        (plain, plain.popitem),
        (plain, plain.clear),
    )
    for written, write in writes:
        before = version(written)
        if version(written) != before:
            return False
        write()
        if version(written) == before:
            return False
    return True


def _check_of(dicts: tuple[dict[Any, Any], ...], *, may_import: bool) -> Check | None:
    """Dynamo's guards of versions: all in one call into C++. None where this torch has no such."""
    is_imported = has_imported_dynamo()
    if not is_imported and not may_import:
        return None
    if len(dicts) < (_FEW if is_imported else _MANY) or not _may_import_dynamo():
        return None
    return guards_of(dicts, lambda item, each, _: add_guard(item.add_dict_version_guard, each))


def _may_import_dynamo() -> bool:
    """Not while something stands in for torch.cuda: dynamo would keep the stand-ins for ever."""
    real = torch.cuda.Stream.__module__ == "torch.cuda.streams"  # an emulated one says torch.cuda
    return "torch._dynamo" in sys.modules or real
