"""A value of the state is looked at again where it lies, without another walk."""

from __future__ import annotations

from typing import Any

import torch

from graphdoctor.target.state.snapshot import readers_of


class Held:
    def __init__(self) -> None:
        self.other, self.count, self.items = 7, 1, [5]


def test_a_reader_tells_what_its_value_is_by_now() -> None:
    held = Held()
    paths = {"held.count", "len(held.items)", "held.items[0]", "held.missing"}
    found = {str(one.path): one for one in readers_of({"held": held}, paths)}
    assert set(found) == paths - {"held.missing"}
    assert all(one.again() == one.now for one in found.values())
    held.count, held.items[0] = 2, 6
    held.items.append(1)
    assert {path: one.again() for path, one in found.items()} == {
        "held.count": 2, "len(held.items)": 2, "held.items[0]": 6,
    }  # fmt: skip
    assert (found["held.count"].holder, found["held.items[0]"].holder) == (held, held.items)
    del held.count
    assert found["held.count"].again() is None


def test_what_torch_counts_for_itself_is_not_read() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer._opt_called = 1  # type: ignore[attr-defined]
    everything: Any = type("Every", (), {"__contains__": lambda self, path: True})()
    found = {str(one.path) for one in readers_of({"optimizer": optimizer}, everything)}
    assert "optimizer._opt_called" not in found
