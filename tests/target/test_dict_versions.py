"""Dictionaries are compared only where their versions say that somebody wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from graphdoctor.target.state import dict_versions
from graphdoctor.target.state.dict_versions import DictVersions
from tests.support.torch_versions import COUNTS_DICT_WRITES, TELLS_DICT_WRITES


class _Watched:
    """Dictionaries with their versions, and how often they had to be compared."""

    def __init__(self, count: int) -> None:
        self.live: list[dict[str, object]] = [{"a": 1, "b": 2.0} for _ in range(count)]
        self.saved = [dict(each) for each in self.live]
        self.comparisons = 0
        self.versions = DictVersions(self.live, self._compare)
        self.are_same = self.versions.checker()

    def _compare(self) -> bool:
        self.comparisons += 1
        return self.live == self.saved


@pytest.fixture(params=[3, 100], ids=["few", "many"])
def watched(request: pytest.FixtureRequest) -> _Watched:
    """Few dictionaries are asked one by one, many all at once in C++."""
    if request.param > dict_versions._MANY:
        __import__("torch._dynamo.guards")
    return _Watched(request.param)


class TestDictVersions:
    def test_many_are_asked_in_one_call(self, watched: _Watched) -> None:
        many = len(watched.live) > dict_versions._MANY
        assert (watched.versions.check is not None) == (many and TELLS_DICT_WRITES)

    def test_nothing_is_compared_while_nothing_is_written(self, watched: _Watched) -> None:
        assert all(watched.are_same() for _ in range(5))
        assert watched.comparisons == (0 if TELLS_DICT_WRITES else 5)

    @pytest.mark.parametrize(
        "write",
        [
            lambda d: d.update(a=7),
            lambda d: d.pop("a"),
            lambda d: d.__setitem__("new", 1),
            lambda d: d.clear(),
            lambda d: d.__setitem__("b", 3.0),
        ],
    )
    def test_every_write_is_seen_until_it_is_taken_back(
        self, watched: _Watched, write: Callable[[dict[str, object]], object]
    ) -> None:
        last = watched.live[-1]
        write(last)
        assert not watched.are_same() and not watched.are_same()
        last.clear()
        last.update(watched.saved[-1])
        assert watched.are_same()
        compared = watched.comparisons
        assert watched.are_same()
        assert (watched.comparisons == compared) == TELLS_DICT_WRITES
        write(last)
        assert not watched.are_same()

    def test_guards_are_made_anew_when_writes_have_ceased(self, watched: _Watched) -> None:
        watched.live[0].update(a=9)
        watched.live[0].update(a=1)
        before = watched.versions.check
        looks = dict_versions._CALM + 5
        assert all(watched.are_same() for _ in range(looks))
        assert watched.comparisons == (1 if TELLS_DICT_WRITES else looks)
        are_asked = not COUNTS_DICT_WRITES  # each by itself, while nothing is written to
        assert (watched.versions.check is before) == (before is None or not are_asked)
        watched.live[0]["a"] = 5
        assert not watched.are_same()

    def test_without_versions_each_look_compares(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dict_versions, "version_function", lambda: None)
        watched = _Watched(3)
        assert watched.are_same() and watched.comparisons == 1
        watched.live[0]["a"] = 5
        assert not watched.are_same() and watched.comparisons == 2

    def test_a_version_that_misses_writes_is_not_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch._C._dynamo.guards, "dict_version", lambda each: 1)
        assert dict_versions.version_function() is None
