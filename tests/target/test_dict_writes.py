"""Writes into watched dictionaries are counted together: one question for all of them, that misses none."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from graphdoctor.target.state import dict_versions
from graphdoctor.target.state.dict_versions import (
    DictVersions,
    shared_counter,
    version_function,
    write_counter,
)
from tests.support.torch_versions import TELLS_DICT_WRITES


class _Numbered:
    """As torch numbers writes since Python 3.12: all one after the other, of the dictionaries that it was asked for."""

    def __init__(self) -> None:
        self.asked = 0
        self._last = 0
        self._watched: dict[int, tuple[dict[Any, Any], dict[Any, Any], int]] = {}

    def __call__(self, held: dict[Any, Any]) -> int:
        self.asked += 1
        # A counter writes into its own last, and then asks.
        in_order = sorted(self._watched.items(), key=lambda item: item[0] == id(held))
        for key, (live, saved, _) in in_order:
            if live != saved:
                self._watch(key, live)
        if id(held) not in self._watched:
            self._watch(id(held), held)
        return self._watched[id(held)][2]

    def _watch(self, key: int, live: dict[Any, Any]) -> None:
        self._last += 1
        self._watched[key] = live, dict(live), self._last


def test_a_counter_rests_while_nothing_watched_is_written_to() -> None:
    version, other = _Numbered(), {"a": 1}
    counter = write_counter(version)
    before = counter()
    other["a"] = 2
    assert [counter() for _ in range(5)] == [before] * 5


def test_every_write_changes_the_count_for_good() -> None:
    version = _Numbered()
    watched = [{"a": 1} for _ in range(3)]
    for each in watched:
        version(each)
    counter = write_counter(version)
    counts = [counter()]
    for each in watched:
        each["a"] += 1
        counts.append(counter())
        assert counter() == counts[-1]
    assert len(set(counts)) == 4


def test_a_write_between_the_two_halves_of_a_question_is_not_missed() -> None:
    """As another thread may write there."""
    numbered, watched = _Numbered(), {"a": 1}
    numbered(watched)
    is_other_writing = False

    def version(held: dict[Any, Any]) -> int:
        found = numbered(held)
        if is_other_writing:
            watched["a"] += 1
        return found

    counter = write_counter(version)
    before = counter()
    is_other_writing = True
    assert counter() == before  # it was written to afterwards
    is_other_writing = False
    assert counter() != before


def test_versions_of_each_dictionary_by_itself_are_no_count() -> None:
    numbers: dict[int, _Numbered] = {}
    assert shared_counter(lambda held: numbers.setdefault(id(held), _Numbered())(held)) is None


@pytest.mark.skipif(not TELLS_DICT_WRITES, reason="this torch tells no versions of dictionaries")
def test_torch_counts_since_python_3_12() -> None:
    version = version_function()
    assert version is not None
    is_free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    counts = sys.version_info >= (3, 12) and not is_free_threaded
    assert (shared_counter(version) is not None) == counts


class TestDictVersionsByTheCount:
    @pytest.fixture(autouse=True)
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.version = _Numbered()
        monkeypatch.setattr(dict_versions, "version_function", lambda: self.version)
        self.live = [{"a": number} for number in range(9)]
        self.saved = [dict(each) for each in self.live]
        self.comparisons = 0
        self.versions = DictVersions(self.live, self._compare)
        self.are_same = self.versions.checker()
        assert self.are_same()

    def _compare(self) -> bool:
        self.comparisons += 1
        return self.live == self.saved

    def test_none_is_asked_while_nothing_is_written(self) -> None:
        before = self.version.asked
        assert all(self.are_same() for _ in range(5))
        assert self.version.asked == before + 5 and not self.comparisons

    def test_a_write_elsewhere_compares_nothing(self) -> None:
        other = {"b": 1}
        self.version(other)
        for _ in range(3):
            other["b"] += 1
            assert self.are_same()
        assert not self.comparisons

    def test_a_write_is_seen_until_it_is_taken_back(self) -> None:
        self.live[4]["a"] = 0
        assert not self.are_same() and not self.are_same()
        self.live[4]["a"] = 4
        assert self.are_same() and self.are_same()
        assert self.comparisons == 3

    def test_a_write_that_another_guard_found_is_seen_by_this_one_too(self) -> None:
        other = {"b": 1}
        saved = dict(other)
        versions = DictVersions([other], lambda: other == saved)
        others_are_same = versions.checker()
        self.live[0]["a"] = 7
        assert others_are_same() and others_are_same()
        assert not self.are_same()
