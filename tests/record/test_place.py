"""What is put on the device is what `.cuda()` puts there, and state that is passed in stays itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.record import prepare, record
from graphdoctor.record.place import PLACED, place
from graphdoctor.target import from_object


class Cache:
    """The last outputs, in a tensor of its own, or in a list."""

    def __init__(self, in_list: bool) -> None:
        self.rows: Any = [torch.zeros(4, 4)] if in_list else torch.zeros(4, 4)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        if isinstance(cache.rows, list):
            cache.rows[0] = torch.cat([cache.rows[0][1:], y[:1]])
            return y + cache.rows[0].sum()
        cache.rows = torch.cat([cache.rows[1:], y[:1]])
        return y + cache.rows.sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("in_list", [False, True])
def test_a_cache_that_is_passed_in_is_the_steps_state(in_list: bool) -> None:
    """The step once wrote into a copy of it, in which nobody saw that its tensor was another."""
    cache = Cache(in_list)
    target = from_object(Decoder().eval(), torch.randn(4, 4), cache)
    with EmulatedDevice() as device:
        placed = place(target, device)
        session = prepare(placed, device, iterations=2)
        assert session.inputs(0).args[1] is cache is session.inputs(1).args[1]
        recording = record(session, progress=lambda doing: None)
    changes = {(c.path, c.kind) for c in recording.captured[1].changes}
    assert changes == {("inputs[1].rows[0]" if in_list else "inputs[1].rows", "rebound-tensor")}


def test_the_lengths_of_a_packed_sequence_stay_on_the_host() -> None:
    packed = pack_padded_sequence(torch.randn(5, 2, 4), torch.tensor([3, 5]), enforce_sorted=False)
    with EmulatedDevice() as device:
        target = place(from_object(nn.LSTM(4, 4).eval(), packed), device)
        (made,) = target.fresh_inputs().args
        assert isinstance(made, type(packed)) and PLACED in target.notes
        assert (made.data.is_cuda, made.sorted_indices.is_cuda) == (True, True)
        assert not made.batch_sizes.is_cuda
        target.step(made)
