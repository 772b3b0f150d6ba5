"""Where DDP modules were made, which decides whether their backward pass can be captured: the same on both devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from graphdoctor.device.observe.earlier_graphs import WhereMade
from graphdoctor.device.observe.patches import Patches
from tests.support.emulated import Seen


def ddp(device_type: str = "cuda") -> DistributedDataParallel:
    """A module that asks for no group."""
    made = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(made)
    made.device_type = device_type
    made._ddp_init_helper()
    return made


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ddp_init_helper", "_pre_forward"):
        monkeypatch.setattr(DistributedDataParallel, name, lambda module, *args: args)


@pytest.mark.parametrize(
    ("on_default", "make", "told"),
    [
        (True, ddp, ["default-stream-ddp"]),
        (False, ddp, []),
        (True, lambda: ddp("cpu"), []),
    ],
)
def test_a_module_that_was_made_on_the_default_stream_is_told_of_where_it_takes_gradients(
    bare: None, on_default: bool, make: Callable[[], DistributedDataParallel], told: list[str]
) -> None:
    seen = Seen()
    where = WhereMade(seen, lambda: on_default)
    with Patches() as lasting:
        where.look_at_making(lasting)
        module = make()
        with Patches() as patches:
            where.tell_of_runs(patches)
            assert module._pre_forward(1) == (1,)
            with torch.no_grad():
                module._pre_forward(1)
        module._pre_forward(1)  # nobody looks
    assert [kind for kind, *_ in seen.events] == told


def test_a_module_from_before_is_not_told_of(bare: None) -> None:
    seen, module = Seen(), ddp()
    where = WhereMade(seen, lambda: True)
    with Patches() as patches:
        where.look_at_making(patches)
        where.tell_of_runs(patches)
        module._pre_forward(1)
    assert not seen.events
