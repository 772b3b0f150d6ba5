"""Float arguments that change between calls are in tensors, and only these are."""

from __future__ import annotations

import torch

from graphdoctor.captured.step_arguments import ChangingArguments
from graphdoctor.device.emulated import EmulatedDevice


def test_only_a_call_with_a_tensor_in_place_of_a_float_has_one() -> None:
    with EmulatedDevice():
        changing, x = ChangingArguments(), torch.ones(2)
        first = changing.with_tensors((x, 0.5), {})
        assert first == ((x, 0.5), {}) and not changing.are_in(*first)
        second = changing.with_tensors((x, 0.75), {})
        assert isinstance(second[0][1], torch.Tensor)
        assert changing.are_in(*second)
        assert not changing.are_in((x, 0.75), {})
