"""State that only others keep, or that they write to: what stands in for it leaves the true one alone."""

from __future__ import annotations

import mmap
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from graphdoctor.record.later.held_by_others import others_of


class Owner:
    def method(self) -> None: ...


def test_what_a_weak_reference_alone_leads_to_may_be_gone() -> None:
    owner = Owner()
    held = weakref.ref(owner)
    ((_, others),) = others_of({"held": held})
    gone: Any = others[id(held)]
    assert gone() is None and held() is owner
    assert not list(others_of({"held": held, "owner": owner}))


def test_a_container_of_weak_references_may_be_empty() -> None:
    owner = Owner()
    held = weakref.WeakSet([owner])
    ((_, others),) = others_of({"held": held})
    gone: Any = others[id(held)]
    assert not gone and owner in held


def test_memory_that_is_mapped_may_hold_anything_and_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "numbers"
    np.arange(4).tofile(file)
    array = np.memmap(file, dtype=np.int64, mode="r+")
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        found = [others for _, others in others_of({"array": array, "mapped": mapped})]
        assert {int(others[id(array)][0]) for others in found} >= {0, -1}  # type: ignore[index]
        assert {others[id(mapped)][0] for others in found} == {0, 1, 127, 255}  # type: ignore[index]
    assert np.fromfile(file, dtype=np.int64).tolist() == [0, 1, 2, 3]


def test_a_method_or_a_finalizer_of_what_others_keep_may_be_gone() -> None:
    owner = Owner()
    finalizer, method = weakref.finalize(owner, Owner), weakref.WeakMethod(owner.method)
    ((_, others),) = others_of({"finalizer": finalizer, "method": method})
    gone, no_method = others[id(finalizer)], others[id(method)]
    assert isinstance(gone, weakref.finalize) and not gone.alive and finalizer.alive
    assert isinstance(no_method, weakref.WeakMethod) and no_method() is None
    finalizer.detach()
